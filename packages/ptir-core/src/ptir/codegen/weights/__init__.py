"""Weights as kernels read them: packed layouts, words of few bits, formats.

What comes in: a program with parameters, and the record of a weight's format (``ptir.weights``).
What goes out: derived parameters in panels (``pack``), and expressions of one weight or of a word
of them, which families put into kernels.
"""
