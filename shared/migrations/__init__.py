"""Alembic: the steps that bring a database up. Imported by nobody; `python -m shared.migrations`."""
