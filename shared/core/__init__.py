"""Floor 0: errors, outcomes, clock, ids and failpoints. Standard library only."""
