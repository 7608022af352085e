"""Telling tenants what became of their objects, by signed webhooks through the outbox."""
