"""The HTTP service: objects, tasks, reviews and administration. `create_app` in app.py is the way in."""
