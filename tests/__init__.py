"""The tests, a folder per tier, and the servers that they start."""
