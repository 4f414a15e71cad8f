"""Weight formats inside kernels: one weight as an expression, from the record of its format."""
