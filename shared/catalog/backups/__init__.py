"""Backups of buckets: runs, their items and pins, what a target holds, manifests, retention."""
