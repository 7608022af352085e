"""The delete service: removes the bytes of contents that nothing refers to."""
