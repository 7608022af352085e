"""Floor 3: what every process needs around its work. Settings, engine, logs, metrics, health, shutdown."""
