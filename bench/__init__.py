"""Benchmarks: ratios measured side by side in one run on one machine. Never tests."""
