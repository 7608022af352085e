"""Resumable uploads: sessions, their parts, and the version that comes of them."""
