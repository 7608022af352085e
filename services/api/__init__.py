"""The HTTP service: objects, tasks, reviews, administration. Begin at `create_app`."""
