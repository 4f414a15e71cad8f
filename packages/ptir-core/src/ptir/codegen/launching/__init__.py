"""Running: memory, steps and launches.

What comes in: an artifact, and handles. What goes out: results, queued. Loops and conditions are
run by the host (``control``).
"""
