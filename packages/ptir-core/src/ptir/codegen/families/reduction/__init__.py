"""Row programs and all other reductions."""
