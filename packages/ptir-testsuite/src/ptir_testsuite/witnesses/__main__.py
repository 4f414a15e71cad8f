"""`python -m ptir_testsuite.witnesses NAME --backend BACKEND`: hear a witness, print its table."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ptir.errors import PtirError
from ptir_testsuite.reports.report import DEFECT
from ptir_testsuite.witnesses import WITNESSES


@click.command()
@click.argument("name", type=click.Choice(sorted(WITNESSES)))
@click.option("--backend", required=True, help="NAME or NAME:DEVICE")
@click.option("--select", help="onnx: only cases that match this pattern, for example 'test_conv*'")
@click.option("--json", "as_json", is_flag=True, help="print the whole report as one JSON value")
def main(name: str, backend: str, select: str | None, as_json: bool) -> None:
    """Run the witness NAME on a backend and print how much of it agrees.

    Exit: 0 everything tried agrees, 1 something disagrees, 2 usage, 3 incomplete or nothing tried.
    """
    options: dict[str, Any] = {}
    if select is not None:
        if name != "onnx":
            raise click.UsageError(f"{name} takes no --select; only onnx has cases by name")
        options["select"] = select
    try:
        report = WITNESSES[name](backend, **options)
    except PtirError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(DEFECT)
    click.echo(json.dumps(report.record()) if as_json else report.table())
    sys.exit(report.exit_code)


if __name__ == "__main__":
    main()
