"""Ops on parts of values: which axes go together, and what is computed of a part alone.

A placement says where a value is, a rule which splits of an op's operands and results match, a
strategy is one such choice, through the lowerings of composites too. Programs are partitioned among
workers with them, and rows that nobody reads are left out of programs.
"""
