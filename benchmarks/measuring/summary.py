"""What ``benchmarks/gpu.sh`` found, as one table: ``python -m measuring.summary FOLDER``.

Reads every part's JSON in FOLDER, prints the table and writes it with all parts to summary.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

OURS, THEIRS, STATUS = "ours-", "theirs-", ".status"
SUMMARY, CONFORMANCE = "summary", "conformance"


def summary(folder: Path) -> dict[str, Any]:
    """The table and the parts; what was not measured is null."""
    parts = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.json"))
        if file.stem not in (SUMMARY, CONFORMANCE)
    }
    copied = parts["device"]["copy_bytes_per_second"]
    names = [name for name in parts if name.startswith(OURS) and not name.endswith(STATUS)]
    table = {}
    for name in names:
        row = parts[name]
        other = parts.get(THEIRS + name.removeprefix(OURS).rpartition("-")[0], {})
        decode = statistics.median(row["decode_tokens_per_second"])
        table[name] = {
            "share_of_copy_bandwidth": decode * (row["weight_bytes_per_step"] or 0) / copied,
            "decode_over_theirs": _over(row, other, "decode_tokens_per_second"),
            "prefill_over_theirs": _over(row, other, "prefill_tokens_per_second"),
            "host_microseconds_per_step": 1e6 * row["host_seconds_per_step"],
            "launches_per_step": row["launches_per_step"],
        }
    return {"table": table, "conformance": _verdict(folder), "parts": parts}


def _over(ours: dict[str, Any], theirs: dict[str, Any], what: str) -> float | None:
    """The ratio of the medians, where both were measured."""
    if what not in theirs:
        return None
    return statistics.median(ours[what]) / statistics.median(theirs[what])


def _verdict(folder: Path) -> dict[str, Any] | None:
    """The last line of the conformance report, where a run came to its end."""
    file = folder / f"{CONFORMANCE}.json"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    return last if last.get("kind") == "footer" else None


def main() -> None:
    """The command."""
    folder = Path(sys.argv[1])
    found = summary(folder)
    (folder / f"{SUMMARY}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    shown = {"table": found["table"], "conformance": found["conformance"]}
    print(json.dumps(shown, indent=1))


if __name__ == "__main__":
    main()
