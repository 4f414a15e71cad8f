"""Draws the speed charts of docs/results/ from the JSON that benchmarks/speed.py wrote.

Run `python scripts/draw_charts.py` after a new file is in benchmarks/results/ (`make docs` installs
matplotlib). `--check` draws nothing and fails where a picture is not what would be drawn. What a
picture shows stands in it as JSON too, so that a test without matplotlib can compare.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
CHARTS: Final = ROOT / "docs" / "results" / "charts"
FORMATS: Final = ("f32", "bf16", "int8", "int4")
PANELS: Final = {
    "decode": "Decoding, tokens a second",
    "prefill of 512": "A prompt of 512, tokens a second",
}
RATIOS: Final = {"decode": "decode, x llama.cpp", "prefill of 512": "prefill, x llama.cpp"}
LABELS: Final = {"c": "ptir, C", "opencl": "ptir, OpenCL", "opencl:portable": "ptir, PoCL"}
PEER: Final = "llama.cpp"
FONT: Final = "DejaVu Sans"
"""It comes with matplotlib, so the layout is the same everywhere; readers may see another."""
IDLE: Final = 0.05
"""The most of the processors that others may take from figures that count."""


@dataclass(frozen=True)
class Scheme:
    """The colours of a picture: its text, and one for each series."""

    text: str
    grid: str
    series: tuple[str, ...]
    peer: str


SCHEMES: Final = {
    "light": Scheme("#1f2328", "#d1d9e0", ("#0b6bcb", "#e8730c", "#1a7f4b"), "#8c959f"),
    "dark": Scheme("#e6edf3", "#3d444d", ("#58a6ff", "#f0883e", "#3fb950"), "#7d8590"),
}


@dataclass(frozen=True)
class Series:
    """One colour: by format the median, the least and the most; ratios to llama.cpp of that run."""

    name: str
    values: dict[str, list[float]]
    ratios: dict[str, float]


@dataclass(frozen=True)
class Chart:
    """What one picture shows, in two panels, and where the numbers come from."""

    panels: dict[str, list[Series]]
    note: str

    def described(self) -> str:
        """The numbers as text that stands in the picture."""
        return json.dumps(asdict(self), sort_keys=True)


def main(arguments: list[str]) -> int:
    """Draw, or say which pictures are stale."""
    drawn = {name: draw(chart(), scheme) for name, scheme in SCHEMES.items()}
    if arguments == ["--check"]:
        stale = [file_of(name).name for name, text in drawn.items() if _kept(name) != text]
        for name in stale:
            print(f"{name} is not what its JSON gives: run `python scripts/draw_charts.py`")
        return len(stale) and 1
    CHARTS.mkdir(exist_ok=True)
    for name, text in drawn.items():
        file_of(name).write_text(text, encoding="utf-8")
    return 0


def file_of(scheme: str) -> Path:
    """Where the picture of a colour scheme is kept."""
    return CHARTS / f"speed-{scheme}.svg"


def _kept(scheme: str) -> str:
    file = file_of(scheme)
    return file.read_text(encoding="utf-8") if file.exists() else ""


def chart(folder: Path = RESULTS) -> Chart:
    """What the JSON files of a folder say, one run of speed.py each."""
    runs = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("speed-*.json"))]
    panels = {title: _series(runs, figure) for figure, title in PANELS.items()}
    return Chart(panels, "\n".join(dict.fromkeys(map(_note, runs))))


def _series(runs: list[dict[str, Any]], figure: str) -> list[Series]:
    """A colour for each backend, one for its ``--fast``, and llama.cpp as the first run has it."""
    found = list[Series]()
    for run in runs:
        name = LABELS.get(run["backend"], f"ptir, {run['backend']}")
        for subject, label in (("ptir", name), ("ptir --fast", f"{name} --fast")):
            prefix = "" if subject == "ptir" else f"{subject}: "
            ratios = {f: row["median"] for f, row in _rows(run, prefix + RATIOS[figure]).items()}
            found.append(Series(label, _values(run, f"{subject}: {figure}"), ratios))
    peers = (Series(PEER, _values(run, f"{PEER}: {figure}"), {}) for run in runs)
    return [one for one in (*found, *list(peers)[:1]) if one.values]


def _values(run: dict[str, Any], figure: str) -> dict[str, list[float]]:
    return {f: [r["median"], r["min"], r["max"]] for f, r in _rows(run, figure).items()}


def _rows(run: dict[str, Any], figure: str) -> dict[str, dict[str, Any]]:
    """The rows of a figure by weight format, with the most threads."""
    return {
        row["subject"]: row
        for row in run["rows"]
        if row["figure"] == figure and row["subject"] in FORMATS
    }


def _note(run: dict[str, Any]) -> str:
    """Where a run was made; that others worked on the machine is said."""
    peer = run["versions"].get("llama-cpp-python")
    taken = [r["median"] for r in run["rows"] if r["figure"] == "processors taken by others"]
    words = [
        f"GPT-2 124M, random weights; {run['processor']}, {max(run['threads'])} threads",
        *([f"llama.cpp {peer} (Python package)"] if peer else []),
        f"{run['date']}; medians and spread of {run['rounds']} rounds",
    ]
    if max(taken, default=0.0) > IDLE:
        words.append(f"others took up to {max(taken):.0%} of the processors")
    return "; ".join(words)


def draw(found: Chart, scheme: Scheme) -> str:
    """The picture as SVG, the same bytes for the same numbers."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style = {
        "svg.hashsalt": "ptir",
        "svg.fonttype": "none",
        "font.family": FONT,
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), scheme.text
        ),
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(len(found.panels), 1, figsize=(9.6, 5.8))
        for axis, (title, series) in zip(axes, found.panels.items(), strict=True):
            _panel(axis, title, series, scheme)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=4, frameon=False)
        figure.text(0.5, 0.01, found.note, ha="center", va="bottom", fontsize=7)
        figure.tight_layout(rect=(0, 0.05, 1, 0.95))
        out = io.StringIO()
        facts = {"Date": None, "Creator": None, "Description": found.described()}
        figure.savefig(out, format="svg", transparent=True, metadata=facts)
        pyplot.close(figure)
    text = out.getvalue().replace(f"'{FONT}'", f"'{FONT}', sans-serif")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _panel(axis: Any, title: str, series: list[Series], scheme: Scheme) -> None:
    width = min(0.84 / max(len(series), 1), 0.3)
    for number, one in enumerate(series):
        colour = scheme.peer if one.name == PEER else scheme.series[number % len(scheme.series)]
        places = [n + (number - (len(series) - 1) / 2) * width for n in range(len(FORMATS))]
        kept = [
            (x, f, one.values[f]) for x, f in zip(places, FORMATS, strict=True) if f in one.values
        ]
        heights = [value[0] for _, _, value in kept]
        spread = [[v[0] - v[1] for _, _, v in kept], [v[2] - v[0] for _, _, v in kept]]
        where = [x for x, _, _ in kept]
        axis.bar(where, heights, width * 0.92, color=colour, label=one.name)
        axis.errorbar(where, heights, spread, fmt="none", ecolor=scheme.text, elinewidth=0.7)
        for x, name, (median, _, most) in kept:
            said = [f"{median:.0f}", *([f"{one.ratios[name]:.2f}×"] if name in one.ratios else [])]
            axis.annotate(
                "\n".join(reversed(said)), (x, most), (0, 2), textcoords="offset points",
                ha="center", va="bottom", fontsize=7,
            )  # fmt: skip
    axis.set_title(title, fontsize=10)
    axis.set_xticks(range(len(FORMATS)), FORMATS)
    axis.margins(y=0.18)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color=scheme.grid, linewidth=0.6)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
