"""Rows times packed weights."""
