"""Helpers that tests of every tier use."""
