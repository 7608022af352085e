"""The libraries that every Cloudblox service is built from."""
