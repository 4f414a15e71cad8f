"""The gated delta rule: a matrix for each head that every token changes."""
