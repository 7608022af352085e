"""Alembic: the steps that bring a database up; `python -m shared.migrations`. Nobody imports it."""
