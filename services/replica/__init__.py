"""The replica service: brings stored contents to the other channels that their buckets name."""
