"""The service of the notify queue."""
