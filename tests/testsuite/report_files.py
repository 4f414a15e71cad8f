"""Reports as files, for the tests of what is done with them."""

from __future__ import annotations

import json

from ptir_testsuite.reports.files import link


def records(path):
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(path):
    """The lines of a file, each without what differs between two runs."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records(path)]


def rewritten(path, lines, resealed=False):
    """Write lines, with digests computed anew where somebody is cleverer."""
    digest = ""
    with path.open("w", encoding="utf-8") as file:
        for record in lines:
            digest = link(digest, record)
            file.write(json.dumps(record | ({"digest": digest} if resealed else {})) + "\n")
