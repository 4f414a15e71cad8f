"""Running: memory, steps and launches.

What comes in: a recipe, and handles. What goes out: results, queued. Loops and conditions are
walked by the host (``control``).
"""
