"""What is run: every call that a backend must answer, derived from the op records.

In come the op records (samples, dtypes, attributes, constraints) and a few tables; out go cases,
composite calls, random programs, scripts and model runs: data with ids that are hashes of their
content. Nothing here knows a backend, and nothing is run.
"""
