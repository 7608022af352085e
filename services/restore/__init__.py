"""The restore service: brings lost bytes back, and buckets to a point in time."""
