"""Activations rounded to bytes."""
