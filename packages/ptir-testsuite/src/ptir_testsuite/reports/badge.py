"""A badge for a README: the verdict of a report, as a picture or for shields.io."""

from __future__ import annotations

import json
from typing import Final

from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT, Report
from ptir_testsuite.running.outcomes import Outcome

COLORS: Final = {
    CONFORMANT: ("brightgreen", "#4c1"),
    NOT_CONFORMANT: ("red", "#e05d44"),
    INCOMPLETE: ("lightgrey", "#9f9f9f"),
}
"""The colour of a verdict: its name at shields.io, and what that is."""
RESERVED: Final = ("yellow", "#dfb317")
"""The colour of what is conformant but for waivers, or claims nothing."""

WIDTH: Final = 6.6  # of a letter, on average, in the badge's font at its size
SVG: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{label}: {message}">
<title>{label}: {message}</title>
<rect width="{left}" height="20" fill="#555"/>
<rect x="{left}" width="{right}" height="20" fill="{color}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,sans-serif" font-size="11">
<text x="{left_middle}" y="14">{label}</text>
<text x="{right_middle}" y="14">{message}</text>
</g>
</svg>
"""


def label_of(report: Report) -> str:
    """The left half: whose verdict it is."""
    return f"ptir {report.header['spec']} {report.header['backend']}"


def message_of(report: Report) -> str:
    """The right half: the verdict and its denominator; what is missing is never left out."""
    passed = f"{len(report.rows)}/{report.header['total']}"
    if report.exit_code == NOT_CONFORMANT:
        return f"not conformant, {len(report.failures)} failed of {passed}"
    return f"{report.verdict}, {passed}"


def color_of(report: Report) -> tuple[str, str]:
    """The colour: its name at shields.io, and what that is."""
    if report.exit_code != CONFORMANT:
        return COLORS[report.exit_code]
    reserved = report.counts[Outcome.WAIVED] or not report.claims_any
    return RESERVED if reserved else COLORS[CONFORMANT]


def shields(report: Report) -> str:
    """The badge as JSON for the endpoint of shields.io."""
    color, _ = color_of(report)
    found = {"schemaVersion": 1, "label": label_of(report), "message": message_of(report)}
    return json.dumps({**found, "color": color})


def svg(report: Report) -> str:
    """The badge as a picture."""
    label, message = map(_escaped, (label_of(report), message_of(report)))
    left, right = (int(WIDTH * len(text)) + 10 for text in (label, message))
    return SVG.format(
        label=label,
        message=message,
        color=color_of(report)[1],
        left=left,
        right=right,
        width=left + right,
        left_middle=left / 2,
        right_middle=left + right / 2,
    )


def _escaped(text: str) -> str:
    text = "".join(letter for letter in text if letter.isprintable())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
