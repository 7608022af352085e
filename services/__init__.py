"""The deployable services, one package each. They never import each other."""
