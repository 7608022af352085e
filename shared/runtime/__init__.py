"""Floor 3: what every process needs around its work: settings, engine, logs, health, shutdown."""
