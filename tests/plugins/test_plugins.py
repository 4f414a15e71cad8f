"""Hooks collect rows from plugins; whatever a plugin does wrong is a record with its cause."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ptir import plugins
from ptir.errors import UsageError
from ptir.ops import implementations
from tiny_distributions import Site, site, strangers_tried

__all__ = ["site", "strangers_tried"]

USE = "from ptir.plugins import hookimpl, ModelModule\n"
MODEL = USE + "@hookimpl\ndef ptir_models(): return [ModelModule('mamba', 'tiny_mamba.model')]\n"


def test_listing_imports_nothing(site: Site) -> None:
    module = site.plugin("one", "raise SystemExit('imported')")
    assert [entry.name for entry in plugins.listed()] == ["one"]
    assert module not in sys.modules


def test_importing_ptir_loads_no_plugin(site: Site) -> None:
    site.plugin("one", "raise SystemExit('imported')")
    program = f"import sys\nsys.path.append({str(site.folder)!r})\nimport ptir, ptir.plugins"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rows_of_all_plugins_are_collected(site: Site) -> None:
    site.plugin("one", MODEL)
    site.plugin("two", MODEL.replace("mamba", "rwkv"))
    rows = plugins.load().rows("ptir_models")
    assert [(r.plugin, r.value.model_type) for r in rows] == [("one", "mamba"), ("two", "rwkv")]
    assert plugins.load().failures() == ()
    assert only_hooks() == {"one": ("ptir_models",), "two": ("ptir_models",)}


def only_hooks() -> dict[str, tuple[str, ...]]:
    return {s.name: s.hooks for s in plugins.load().statuses()}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ValueError('no luck')", "ValueError: no luck"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "implements no hook"),
        (USE + "@hookimpl\ndef ptir_models(a, b): return []", "ptir_models(a, b)"),
        (USE + "@hookimpl\ndef ptir_modles(): return []", "unknown hook 'ptir_modles'"),
    ],
)
def test_plugin_that_cannot_load_is_a_record_and_spares_the_next(
    site: Site, source: str, words: str
) -> None:
    site.plugin("bad", source)
    site.plugin("good", MODEL)
    (bad,) = plugins.load().failures()
    assert (bad.name, bad.status) == ("bad", "broken")
    assert words in bad.reason
    assert "\n" not in bad.reason
    assert [row.plugin for row in plugins.load().rows("ptir_models")] == ["good"]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("1 / 0", "ptir_models() failed: ZeroDivisionError"),
        ("sys.exit()", "ptir_models() failed: SystemExit"),
        ("[1]", "ptir_models() returned 1, which is not a ptir.plugins.ModelModule"),
        ("7", "ptir_models() failed: TypeError"),
    ],
)
def test_failing_hook_spares_the_other_plugins(site: Site, returned: str, words: str) -> None:
    site.plugin("bad", f"import sys\n{USE}@hookimpl\ndef ptir_models(): return {returned}")
    site.plugin("good", MODEL)
    rows = plugins.load().rows("ptir_models")
    assert [row.plugin for row in rows] == ["good"]
    (failure,) = plugins.load().failures()
    assert failure.name == "bad"
    assert words in failure.reason


def test_name_claimed_twice_loads_neither(site: Site) -> None:
    entry = "twin = tiny_first"
    site.add("tiny-first", plugins.GROUP, entry, MODEL)
    site.add("tiny-second", plugins.GROUP, entry, MODEL)
    assert plugins.load().rows("ptir_models") == []
    for status in plugins.load().statuses():
        assert status.status == "duplicate"
        assert "tiny-first 1.0 and tiny-second 1.0" in status.reason


def test_unknown_hook_is_refused(site: Site) -> None:
    with pytest.raises(UsageError, match="nearest: ptir_models"):
        plugins.load().rows("ptir_model")


IMPLEMENTATION = (
    USE + "from ptir.ops.implementations import Implementation\n"
    "@hookimpl\ndef ptir_implementations(): return [Implementation('tiny_f', 'fast', None)]\n"
)


def test_implementations_join_the_table(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = implementations.Functional("tiny_f", "A functional.", {})
    monkeypatch.setitem(implementations.FUNCTIONALS, "tiny_f", found)
    site.plugin("one", IMPLEMENTATION)
    site.plugin("two", IMPLEMENTATION)
    installed = plugins.install()
    assert list(implementations.functional("tiny_f").implementations) == ["fast"]
    (failure,) = installed.failures()
    assert failure.name == "two"
    assert "'fast' exists already" in failure.reason


def specified() -> dict[str, object]:
    marked = vars(plugins).items()
    return {name: f for name, f in marked if hasattr(f, f"{plugins.PROJECT}_spec")}


def test_every_hook_has_rows_a_signature_and_an_example() -> None:
    assert set(specified()) == set(plugins.ROWS)
    for name, hook in specified().items():
        doc = inspect.getdoc(hook) or ""
        arguments = ", ".join(inspect.signature(hook).parameters)  # type: ignore[arg-type]
        assert f"Signature: ``{name}(" in doc
        assert f"@hookimpl\n    def {name}({arguments}):\n        return [" in doc


def test_threads_that_load_at_the_same_time_add_rows_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = implementations.Functional("tiny_f", "A functional.", {})
    monkeypatch.setitem(implementations.FUNCTIONALS, "tiny_f", found)
    site.plugin("slow", "import time\ntime.sleep(0.2)\n" + IMPLEMENTATION)
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: plugins.install(), range(4)))
    assert [one.failures() for one in loaded] == [()] * 4
    assert list(found.implementations) == ["fast"]


def test_without_room_for_a_trial_plugins_are_loaded_untried(
    strangers_tried: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.plugin("fine", IMPLEMENTATION)

    def full() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.warns(RuntimeWarning, match="nobody was tried .*: No space left on device"):
        plugins.try_strangers()
    assert [status.status for status in plugins.load().statuses()] == ["ok"]
