"""The backup service: copies what buckets hold to their backup targets, and prunes there."""
