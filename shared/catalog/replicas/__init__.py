"""Copies beside the first one: what buckets ask for, what there is, and what was lost."""
