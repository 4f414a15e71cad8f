"""Report files: JSON lines, written as rows come in, sealed at the end, and read back.

While a run lasts the file is a header and plain rows, so that nothing is lost whatever happens to
the process. At the end it is written anew: rows in the order of the corpus, each with a digest of
everything before it, and a footer. Times are no part of the digests: they differ between runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ptir.errors import UsageError
from ptir_testsuite.reports.provenance import differing, listed
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.schema import require
from ptir_testsuite.running.outcomes import Row

SCHEMA: Final = 4
UNSEALED: Final = ("seconds", "digest")


def link(before: str, record: Mapping[str, Any]) -> str:
    """The digest of a line: of the digest before it and of everything in it but times."""
    kept = {name: value for name, value in record.items() if name not in UNSEALED}
    text = json.dumps(kept, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(f"{before}\n{text}".encode(), digest_size=16).hexdigest()


def sealed(report: Report) -> Iterator[dict[str, Any]]:
    """The lines of a finished report, each with its digest."""
    digest = ""
    for record in (report.header, *(row.record() for row in report.rows), report.footer()):
        digest = link(digest, record)
        yield {**record, "digest": digest}


def broken(contents: Contents) -> str:
    """Which line's digest does not fit, of a report that has any; nothing where all do."""
    lines = (contents.header, *contents.rows, *([contents.footer] if contents.footer else ()))
    if not any("digest" in record for record in lines):
        return ""
    digest = ""
    for number, record in enumerate(lines, 1):
        digest = link(digest, record)
        if record.get("digest") != digest:
            where = record.get("id", record["kind"])
            return (
                f"line {number} ({where}): its digest is not that of the lines up to it: a line was"
                " edited, removed or added"
            )
    return ""


def write(report: Report, path: Path) -> None:
    """Write the finished report in the place of whatever is there, whole or not at all."""
    _replace(path, sealed(report))


def _replace(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(_line(record) for record in records)
        os.replace(beside, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


@dataclass(frozen=True)
class Contents:
    """What a file holds: the header, rows and footer as written, with their digests if any.

    ``torn`` says that the last line is not whole: the process died while it was written.
    """

    header: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    footer: dict[str, Any] | None
    torn: bool = False

    @property
    def plain_header(self) -> dict[str, Any]:
        """The header without its digest."""
        return _plain(self.header)

    @property
    def parsed(self) -> list[Row]:
        """The rows; raises ``UsageError`` for a line that is none."""
        return [Row.of(_plain(record)) for record in self.rows]


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "digest"}


def read(path: Path) -> Contents:
    """What a report file holds; raises ``UsageError`` where it is none."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    torn = lines.pop() != ""
    records = [_parsed(path, number, text) for number, text in enumerate(lines, 1)]
    if not records or records[0].get("kind") != "header":
        raise UsageError(f"{path}: no report: the first line is not a header")
    found = records[0].get("schema")
    if found != SCHEMA:
        raise UsageError(
            f"{path}: schema {found!r}; this suite reads {SCHEMA}; run the suite again"
        )
    for number, record in enumerate(records, 1):
        require(record, f"{path}:{number}")
    ended = len(records) > 1 and records[-1]["kind"] == "footer"
    rows = records[1:-1] if ended else records[1:]
    for number, record in enumerate(rows, 2):
        if record["kind"] != "case":
            raise UsageError(f"{path}:{number}: a {record['kind']} among the rows")
    return Contents(records[0], tuple(rows), records[-1] if ended else None, torn)


def _parsed(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
        if "\\ud" in text.lower():  # a half of a character cannot be printed
            json.dumps(record, ensure_ascii=False).encode()
    except RecursionError:
        raise UsageError(f"{path}:{number}: not a line of JSON: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path}:{number}: not a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{path}:{number}: not a line of a report: it has no kind")
    return record


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


class Journal:
    """A file that gets every row when it is known; with ``resume``, after those it has already."""

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path, self.resume = path, resume
        self._file: IO[str] | None = None

    def begin(self, header: dict[str, Any], selected: Container[str]) -> Sequence[Row]:
        """Open the file; the rows that need not be run again.

        Raises ``UsageError`` where the file holds an unfinished run that was not to be resumed, one
        of another header, or rows that are not among the ids ``selected``, each once.
        """
        done = self._rows_of(header) if self.path.exists() else []
        ids = [row.case for row in done]
        odd = [id for id, often in Counter(ids).items() if often > 1 or id not in selected]
        if odd:
            raise UsageError(
                f"{self.path} cannot be resumed: its row {odd[0]} is there twice, or of no case of"
                " this run; run without --resume into another file"
            )
        _replace(self.path, (header, *(row.record() for row in done)))
        self._file = self.path.open("a", encoding="utf-8")
        return done

    def _rows_of(self, header: dict[str, Any]) -> list[Row]:
        if self.resume and self.path.stat().st_size:
            found = read(self.path)
            require_same(self.path, found.plain_header, header)
            if fault := broken(found):
                raise UsageError(
                    f"{self.path} cannot be resumed: {fault}; run without --resume into another"
                    " file"
                )
            return found.parsed
        if _is_unfinished(self.path):
            raise UsageError(
                f"{self.path} holds an unfinished run; go on with --resume, or remove the file"
            )
        return []

    def add(self, row: Row) -> None:
        """Append a row, which is then in the file whatever becomes of this process."""
        if self._file is None:
            raise ValueError("begin() comes first")
        self._file.write(_line(row.record()))
        self._file.flush()

    def close(self) -> None:
        """Close the file; it stays as it is, without a footer."""
        if self._file is not None:
            self._file.close()

    def finish(self, report: Report) -> None:
        """Close the file and write the finished report in its place."""
        self.close()
        write(report, self.path)


def _is_unfinished(path: Path) -> bool:
    try:
        found = read(path)
    except UsageError:
        if not path.stat().st_size:
            return False
        raise UsageError(f"{path} is there and is no report; choose another file") from None
    return bool(found.rows) and (found.footer is None or bool(found.footer["interrupted"]))


OPTIONS: Final = {"words": "-k", "profiles": "--claims", "programs": "seed, first and count"}
"""What people know some fields of the header by; they are looked at first."""


def require_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` where the header of an unfinished run is not that of this one."""
    for name in dict.fromkeys((*OPTIONS, *sorted({*found, *wanted}))):
        before, now = found.get(name), wanted.get(name)
        if before != now:
            said = f"its {OPTIONS.get(name, name)} is {before!r} and now it is {now!r}"
            if isinstance(before, dict) and isinstance(now, dict):
                others = differing(before, now, values=name == "dependencies")
                said = f"of its {name}, {listed(others)}"
            raise UsageError(
                f"{path} cannot be resumed: {said}; run without --resume into another file"
            )
