"""The review service: judges content before it is stored."""
