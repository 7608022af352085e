"""Private servers on loopback for tests, benches and fault runs, each a context manager."""
