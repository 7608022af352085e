"""The upload service: writes acknowledged bytes from staging to a storage channel."""
