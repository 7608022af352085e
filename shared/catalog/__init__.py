"""Floor 2: tenants, buckets, objects, versions, blobs, their locations and channels."""
