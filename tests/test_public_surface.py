"""The public surface changes together with the changelog, and its record is what is there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptir.ops.classes import FLOAT
from ptir.ops.record import OPS, define

REPOSITORY = Path(__file__).resolve().parent.parent

BEFORE = """# written
# told by 0.2.0 {digest}

  $ ptir run
  $ ptir run --seed integer
  op add(lhs, rhs)
+ ptir.nn.Young: class(Module)(size: int)
+ ptir.nn.Young.grow(self) -> None
  ptir.nn.Linear: class(Module)(size: int)
  ptir.nn.Linear.__call__(self, x: Tensor) -> Tensor
"""
OLD = """# Changelog

## {version} (unreleased)

- `Young`, a layer.

## 0.1.0

- `Linear`, `mul`.
"""


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """scripts/public_surface.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts"))
        yield importlib.import_module("public_surface")


@pytest.fixture
def told(script: Any) -> Callable[..., Any]:
    """What ``change`` finds where lines went and came since BEFORE, and entries were added."""

    def found(*entries: str, gone: str = "", come: tuple[str, ...] = (), version: str = "0.2.0"):
        digest = script.top_section(OLD.format(version="0.2.0")).digest
        before = script.Snapshot.read(BEFORE.format(digest=digest))
        now = [line for line in before.lines if not gone or not re.match(gone, line)]
        entry = "".join(f"- {text}\n" for text in entries)
        changelog = OLD.format(version=version).replace("- `Young`", f"{entry}- `Young`")
        return script.change(before, [*now, *come], script.top_section(changelog))

    return found


def test_the_public_surface_is_the_one_that_the_changelog_tells_of(script: Any) -> None:
    before, now, section = script.found()
    changed = script.change(before, now, section)
    assert changed is None, f"\n{changed}"


def test_the_record_is_what_the_script_writes(script: Any) -> None:
    text = script.SNAPSHOT.read_text(encoding="utf-8")
    assert str(script.Snapshot.read(text)) == text


def test_nothing_is_asked_of_an_entry_about_something_else(told: Any) -> None:
    assert told("Faster.") is None


MUL = ("op mul(lhs, rhs)",)
LINEAR = ("ptir.nn.Linear: class(Module)(size: int, bias: bool)",)


@pytest.mark.parametrize(
    ("entries", "change", "untold"),
    [
        ((), {"come": MUL}, "still the one of the last change"),
        (("Faster.",), {"come": MUL}, "does not name `mul`"),
        (("The op mul.",), {"come": MUL}, "does not name `mul`"),
        (("`mul`.",), {"come": MUL}, ""),
        (("`Linear` takes `bias`.",), {"gone": "ptir.nn.Linear:", "come": LINEAR}, ""),
        (("`bias`.",), {"gone": "ptir.nn.Linear:", "come": LINEAR}, "does not name `Linear`"),
        (("`Linear` is no more.",), {"gone": "ptir.nn.Linear"}, ""),
        (("Faster.",), {"gone": "ptir.nn.Linear"}, "does not name `Linear`"),
        (("Faster.",), {"gone": "ptir.nn.Linear.__call__"}, "does not name `Linear`"),
        (("Faster.",), {"gone": "ptir.nn.Young"}, ""),
        ((), {"gone": "ptir.nn.Young"}, "still the one of the last change"),
        (("`Young`.",), {"gone": "ptir.nn.Young", "version": "0.3.0"}, ""),
        (("`run` forgets its seed.",), {"gone": r"\$ ptir run --"}, "does not name `--seed`"),
        (("`run --seed` went.",), {"gone": r"\$ ptir run --"}, ""),
        (("`run` went.",), {"gone": r"\$ ptir run"}, ""),
        (("`sing`.",), {"come": ("$ ptir sing", "$ ptir sing --loud flag")}, ""),
        (("`sing`.",), {"come": ("$ ptir sing --loud flag",)}, "does not name `--loud`"),
        (("`ptir sing-on --loud`",), {"come": ("$ ptir sing-on", "$ ptir sing-on TONE text")}, ""),
        (("`-l/--loud`",), {"come": ("$ ptir run -l/--loud flag",)}, ""),
    ],
)
def test_what_came_changed_or_went_is_named(
    told: Any, entries: tuple[str, ...], change: dict[str, Any], untold: str
) -> None:
    found = told(*entries, **change)
    assert untold in found.untold and bool(untold) == bool(found.untold)
    for line in change.get("come", ()):
        assert f"+ {line}" in str(found), "the message says what changed"
    assert "public_surface.py --write" in str(found), "and what to do"


def test_a_young_thing_is_old_after_the_release(script: Any, told: Any) -> None:
    digest = script.top_section(OLD.format(version="0.2.0")).digest
    before = script.Snapshot.read(BEFORE.format(digest=digest))
    lines = [*before.lines, *MUL]
    same = script.written(before, lines, script.top_section(OLD.format(version="0.2.0")))
    assert [line for line, new in same.lines.items() if new] == [
        "ptir.nn.Young: class(Module)(size: int)",
        "ptir.nn.Young.grow(self) -> None",
        *MUL,
    ]
    later = script.written(before, lines, script.top_section(OLD.format(version="0.3.0")))
    assert [line for line, new in later.lines.items() if new] == [*MUL]
    assert script.Snapshot.read(str(later)) == later


def test_lines_broken_elsewhere_tell_nothing(script: Any) -> None:
    text = "## 1.0\n\n- One entry, `long`.\n- `other`\n\n## 0.9\n"
    broken = "## 1.0\n\n- One\n  entry, `long`.\n- `other`\n\n## 0.9\n\n- `more`\n"
    assert script.top_section(text).digest == script.top_section(broken).digest
    assert script.top_section(broken).names == {"long", "other"}
    with pytest.raises(ValueError, match="no section"):
        script.top_section("# Changelog\n")


def test_write_refuses_an_untold_change(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """And writes a told one, once: then the section is that of the last change again."""
    snapshot, changelog = tmp_path / "surface.txt", tmp_path / "CHANGELOG.md"
    changelog.write_text(OLD.format(version="0.2.0"))
    snapshot.write_text(BEFORE.format(digest=script.top_section(changelog.read_text()).digest))
    surface = [*script.Snapshot.read(snapshot.read_text()).lines]
    monkeypatch.setattr(script, "SNAPSHOT", snapshot)
    monkeypatch.setattr(script, "CHANGELOG", changelog)
    monkeypatch.setattr(script, "lines", lambda: surface)
    kept = snapshot.read_text()
    assert script.main(["--write"]) == 0 and snapshot.read_text() == kept
    surface.extend(MUL)
    assert script.main(["--write"]) == 1 and snapshot.read_text() == kept
    assert "refused, nothing is written" in capsys.readouterr().out
    changelog.write_text(changelog.read_text().replace("- `Young`", "- `mul`.\n- `Young`"))
    assert script.main([]) == 1 and snapshot.read_text() == kept
    assert script.main(["--write"]) == 0 and f"+ {MUL[0]}\n" in snapshot.read_text()
    assert script.main([]) == 0
    surface[-1] = "op mul(lhs, rhs, *, exact)"
    assert script.main(["--write"]) == 1, "each change is told, also of what was told before"


def test_ops_of_others_are_not_part_of_it(script: Any) -> None:
    known = script.lines()
    define(
        "cube_of_a_test",
        "operand",
        dtypes=FLOAT,
        rule=lambda call: call.types[0],
        reference=lambda xp, operand: operand,
        doc="Not ours.",
        traits="elementwise",
    )
    try:
        assert script.lines() == known
    finally:
        del OPS["cube_of_a_test"]


def test_what_pages_and_skeletons_import_is_public(script: Any) -> None:
    """The first page, the example and the templates of ``ptir new-backend`` are promises."""
    data = REPOSITORY / "packages/ptir-core/src/ptir/data/backend"
    files = [REPOSITORY / "README.md", *data.glob("*.in"), *REPOSITORY.glob("examples/**/*.py")]
    pattern = re.compile(r"^ *from (ptir[\w.]*) import ([\w ,]+?)(?: as \w+)?$", re.MULTILINE)
    found = {
        (module, name)
        for path in files
        for module, listed in pattern.findall(path.read_text(encoding="utf-8"))
        for name in listed.split(", ")
    }
    surface = importlib.import_module("surface")
    public = {(module, name) for module in surface.MODULES for name in surface.names(module)}
    rooms = {tuple(module.rsplit(".", 1)) for module in surface.MODULES if "." in module}
    assert found and sorted(found - public - rooms) == []
