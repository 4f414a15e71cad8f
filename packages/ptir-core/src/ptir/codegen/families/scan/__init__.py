"""Running sums, products and extremes."""
