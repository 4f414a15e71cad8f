"""Sorting and the greatest elements."""
