"""Reviewing again what has passed before: runs over a bucket, and what their reviews decide."""
