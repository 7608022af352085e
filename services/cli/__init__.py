"""The `blox` command: run the stack on one machine, and look after tasks from a terminal."""
