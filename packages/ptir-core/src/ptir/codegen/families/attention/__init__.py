"""Attention, with the cache update before it."""
