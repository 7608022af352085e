"""Coordination over Redis: slots that bound how many executions use one thing at a time."""
