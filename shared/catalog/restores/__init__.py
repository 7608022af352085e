"""Lost copies and their return; buckets brought back to a point in time."""
