"""Rows times the weights of the experts that each is given to."""
