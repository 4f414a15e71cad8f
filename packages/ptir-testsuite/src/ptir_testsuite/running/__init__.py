"""Running what the corpus holds on a backend, and what each of it came to.

In come items of the corpus and a target; out go rows: an outcome of a closed set, the phase in
which it arose, the worst error. ``execute`` runs one case phase by phase, ``judge`` holds the
results against the oracles, ``workers`` puts crashes and hangs at the price of one row.
"""
