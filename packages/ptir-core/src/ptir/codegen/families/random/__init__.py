"""Random words."""
