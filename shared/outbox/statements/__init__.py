"""The hot statements, written once as text with tokens that the dialect fills."""
