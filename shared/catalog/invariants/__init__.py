"""What must hold of the catalogue and its channels once everything is quiet. Read only."""
