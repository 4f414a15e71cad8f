"""Every other contraction."""
