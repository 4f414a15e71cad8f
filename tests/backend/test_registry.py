"""Backends are found without importing them, refused with their cause, and ranked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ptir.backend import Device, registry, trial
from ptir.backend.probe import probe
from ptir.errors import BackendUnavailable, DeviceError, PluginError
from tiny_backend import TinyBackend, WrongBackend
from tiny_distributions import TINY, Site, site, strangers_tried

__all__ = ["site", "strangers_tried"]

CARDS = (
    Device(0, "Radeon gfx1100", "discrete"),
    Device(1, "Radeon gfx1030", "discrete"),
    Device(2, "Host CPU", "cpu"),
)


def tiny(*devices: tuple[int, str, str], base: str = "TinyBackend", after: str = "") -> str:
    listing = "".join(f"Device(*{device!r}), " for device in devices)
    return f"{TINY}\nbackend = {base}(({listing}))\n{after}\n"


def status(name: str) -> registry.BackendStatus:
    (found,) = [s for s in registry.status_table() if s.name == name]
    return found


def test_listing_imports_nothing(site: Site) -> None:
    module = site.backend("aa", "raise SystemExit('imported')")
    (entry,) = registry.listed()
    assert (entry.name, entry.distribution, entry.version) == ("aa", "tiny-aa", "1.0")
    assert entry.value == f"{module}:backend"
    assert module not in sys.modules


def test_only_the_named_backend_is_imported(site: Site) -> None:
    site.backend("good", TINY)
    other = site.backend("other", TINY)
    assert registry.get("good").backend.name == "good"
    assert other not in sys.modules


def test_loading_twice_gives_one_backend(site: Site) -> None:
    site.backend("made", TINY + "\nbackend = TinyBackend\n")
    assert registry.load("made") is registry.load("made")


@pytest.mark.parametrize(
    ("source", "expected", "words"),
    [
        ("raise ValueError('no luck')", "broken", "ValueError: no luck"),
        ("raise SystemExit(3)", "broken", "SystemExit: 3"),
        ("class Odd(BaseException): pass\nraise Odd('x')", "broken", "Odd: x"),
        ("import no_such_library", "broken", "No module named 'no_such_library'"),
        ("", "broken", "no attribute 'backend'"),
        ("backend = 7", "broken", "is int, not a ptir.backend.Backend"),
        ("def backend(): return 'x'", "broken", "is str, not a ptir.backend.Backend"),
        ("def backend(): raise OSError('gone')", "broken", "OSError: gone"),
        (tiny(base="(lambda d: TinyBackend((1,)))"), "broken", "gave 1, which is not a"),
        (TINY + "\ndef fail(): 1 / 0\nbackend.devices = fail", "broken", "ZeroDivisionError"),
        (TINY + "\nbackend.api_version = '1'", "broken", "api_version is '1'"),
        (TINY + "\nbackend.api_version = (1, 1)", "incompatible", "needs backend API 1.1"),
        (TINY + "\nbackend.api_version = (2, 0)", "incompatible", "upgrade ptir-core"),
        (TINY + "\nbackend.api_version = (0, 9)", "incompatible", "upgrade the backend"),
        (tiny(), "unavailable", "no device"),
        (
            "from ptir.errors import DeviceError\nraise DeviceError('no driver')",
            "unavailable",
            "no driver",
        ),
    ],
)
def test_what_is_wrong_is_said(site: Site, source: str, expected: str, words: str) -> None:
    site.backend("bad", source)
    site.backend("good", TINY)
    found = status("bad")
    assert found.status == expected
    assert words in found.reason
    assert found.devices == ()
    assert status("good").status == "ok"
    with pytest.raises(BackendUnavailable) as raised:
        registry.get("bad")
    assert words in str(raised.value)
    assert "tiny-bad 1.0" in str(raised.value)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("claims = ['core', 'f16']", "claims is ['core', 'f16'] (list); write a frozenset of"),
        ("claims = 'core'", "(str); write a frozenset of profiles: frozenset({'core'})"),
        ("claims = {'core'}", "(set); write a frozenset"),
        ("claims = frozenset({'core', 'half'})", "claims names an unknown profile 'half'"),
        ("claims = frozenset({7})", "unknown profile '7'"),
        ("claims = property(lambda self: 1 / 0)", "reading claims failed: ZeroDivisionError"),
        (
            "claims = property(lambda self: frozenset({'cor'}))",
            "'cor' (nearest: core, sort); known",
        ),
        ("correctly_rounded = 'div'", "correctly_rounded is 'div' (str); write a frozenset of"),
        ("correctly_rounded = frozenset({'sqr'})", "unknown op 'sqr' (nearest: sqrt"),
        (
            "correctly_rounded = frozenset({'exp'})",
            "correctly_rounded names 'exp', whose accuracy is ulp:3 for every backend"
            " (docs/reference/accuracy.md); it can name div, reciprocal, sqrt",
        ),
        ("correctly_rounded = frozenset({'add'})", "'add', whose accuracy is rounded for every"),
        ("ops = 'add'", "ops is 'add' (str); write a collection of names of ops"),
        ("ops = 7", "ops is 7 (int); write a collection"),
        ("ops = ('add', 'trnspose')", "ops names an unknown op 'trnspose' (nearest: transpose"),
        ("name = 'minnie'", "entry point 'bad' gives a backend named 'minnie'; they must be equal"),
        ("name = None", "has the name None; write name = 'bad', as the entry point"),
    ],
)
def test_what_is_declared_wrongly_is_said_where_it_is_loaded(
    site: Site, declared: str, words: str
) -> None:
    site.backend("bad", f"{TINY}\nclass Bad(TinyBackend):\n    {declared}\nbackend = Bad()")
    with pytest.raises(BackendUnavailable) as raised:
        registry.load("bad")
    assert "backend 'bad' of tiny-bad 1.0 is broken: " in str(raised.value)
    assert words in str(raised.value)


def test_what_is_declared_rightly_is_taken_whatever_form_it_has(site: Site) -> None:
    lines = (
        "claims = property(lambda self: frozenset({'core', 'f16'}))",
        "correctly_rounded = frozenset({'div', 'sqrt', 'reciprocal'})",
        "ops = {'add': 1, 'composite': 2}",
    )
    body = "".join(f"    {line}\n" for line in lines)
    site.backend("good", f"{TINY}\nclass Good(TinyBackend):\n{body}backend = Good()")
    assert registry.load("good").claims == {"core", "f16"}


def test_what_is_claimed_for_a_device_is_checked_where_the_device_is_named(site: Site) -> None:
    body = "    def claimed(self, device): return ['core']\n"
    site.backend("bad", f"{TINY}\nclass Bad(TinyBackend):\n{body}backend = Bad()")
    wrong = r"claimed\(\) is \['core'\] \(list\); write a frozenset"
    with pytest.raises(PluginError, match=wrong):
        registry.get("bad")
    with pytest.raises(BackendUnavailable, match=wrong):
        registry.best()


def test_version_is_checked_before_any_call(site: Site) -> None:
    calls = "\ndef devices(): raise SystemExit('called')\nbackend.devices = devices"
    site.backend("future", TINY + calls + "\nbackend.api_version = (9, 0)")
    factory = "def backend(): raise SystemExit('called')\nbackend.api_version = (9, 0)"
    site.backend("factory", factory)
    assert status("future").status == "incompatible"
    assert status("factory").status == "incompatible"


def test_interrupt_during_import_is_not_swallowed(site: Site) -> None:
    site.backend("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.status_table()


def test_what_an_import_prints_stays_off_stdout(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.backend("loud", TINY + "\nprint('hello')")
    registry.load("loud")
    assert capsys.readouterr() == ("", "hello\n")


def test_strangers_that_end_their_process_are_lines(strangers_tried: Site) -> None:
    leave = "print('so long', flush=True)\nimport os\nos._exit(3)"
    ends = {
        "leaves": (leave, "exit code 3"),
        "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        "devices": (f"{TINY}\nimport os\nbackend.devices = lambda: os._exit(4)", "exit code 4"),
    }
    for name, (source, _) in ends.items():
        strangers_tried.backend(name, source)
    strangers_tried.backend("good", TINY)
    found = {status.name: status for status in registry.status_table()}
    assert found["good"].status == "ok"
    for name, (_, how) in ends.items():
        assert found[name].status == "broken"
        assert f"it ends the process that loads it ({how})" in found[name].reason
    assert found["leaves"].reason.endswith("; its last words: so long")
    assert registry.best().target.backend.name == "good"


def test_a_stranger_that_never_comes_back_is_a_line(
    strangers_tried: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LIMIT_SECONDS", 0.2)
    strangers_tried.backend("hangs", "import threading\nthreading.Event().wait()")
    assert status("hangs").reason == "it did not come back within 0.2 s of being loaded"


def test_a_trial_starts_no_trials(strangers_tried: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"import os\nos._exit(7 if {trial.IN_TRIAL!r} in os.environ else 8)"
    strangers_tried.backend("nested", source)
    assert "exit code 7" in status("nested").reason
    trial.verdicts.cache_clear()
    monkeypatch.setenv(trial.IN_TRIAL, "1")
    assert trial.ended(registry.listed(), "ptir.backend.registry:examine") == {}


def test_only_strangers_are_tried_and_only_where_none_is_named(
    strangers_tried: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.backend("good", TINY)
    strangers_tried.backend("ref", TINY, "ptir_Backend.ref")
    assert [entry.name for entry in trial.strangers(registry.listed())] == ["good"]
    started: list[str] = []
    monkeypatch.setattr(trial, "_started", lambda entry, loader: started.append(entry.name))
    assert registry.get("good").backend.name == "good"
    assert started == []


def test_name_claimed_twice_is_an_error_naming_both(site: Site) -> None:
    site.backend("twin", TINY, "tiny-first")
    site.backend("twin", TINY, "tiny-second")
    assert [s.status for s in registry.status_table()] == ["duplicate", "duplicate"]
    with pytest.raises(BackendUnavailable, match=r"tiny-first 1\.0 and tiny-second 1\.0"):
        registry.get("twin")


def test_unreadable_declaration_is_one_broken_entry(site: Site) -> None:
    site.add("tiny-garbled", registry.GROUP, "no equals sign", "")
    site.backend("good", TINY)
    assert status("tiny-garbled").status == "broken"
    assert "entry_points.txt of tiny-garbled" in status("tiny-garbled").reason
    assert registry.get("good").device.name == "Tiny One"


def test_missing_official_backend_names_its_pip_line(site: Site) -> None:
    site.backend("good", TINY)
    with pytest.raises(BackendUnavailable) as raised:
        registry.get("opencl:0")
    line = "backend 'opencl' is not installed: pip install ptir-backend-opencl; installed: good"
    assert str(raised.value) == line
    assert raised.value.exit_code == 3


def test_misspelt_name_gives_the_nearest_installed_and_official(site: Site) -> None:
    site.backend("good", TINY)
    with pytest.raises(BackendUnavailable, match=r"nearest: good\); known: good"):
        registry.get("goood")
    with pytest.raises(BackendUnavailable, match="pip install ptir-backend-opencl"):
        registry.get("OpenCl")


def test_unknown_name_says_how_a_backend_gets_a_name(site: Site) -> None:
    with pytest.raises(BackendUnavailable) as raised:
        registry.get("mini")
    assert str(raised.value) == (
        "unknown backend 'mini'; known: (none). A backend registers itself in the entry-point"
        " group ptir.backends: is its package installed in this environment? `ptir backends` lists"
        " what is"
    )


@pytest.mark.parametrize(
    ("wanted", "index"),
    [("", 0), ("1", 1), ("gfx1100", 0), ("GFX1030", 1), ("host cpu", 2)],
)
def test_device_is_found_by_index_or_name_part(wanted: str, index: int) -> None:
    assert registry.pick_device("opencl", CARDS, wanted).index == index


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("7", "no device '7'; it has 0 (Radeon gfx1100), 1"),
        ("radeon", "several devices: 0 (Radeon gfx1100), 1 (Radeon gfx1030)"),
    ],
)
def test_unknown_or_unclear_device_is_refused(wanted: str, words: str) -> None:
    with pytest.raises(BackendUnavailable) as raised:
        registry.pick_device("opencl", CARDS, wanted)
    assert words in str(raised.value)
    if wanted == "radeon":
        assert "Host CPU" not in str(raised.value)


def test_probe_accepts_right_and_refuses_wrong_answers() -> None:
    device = Device(0, "x", "cpu")
    assert probe(TinyBackend(), device) is None
    reason = probe(WrongBackend(), device)
    assert isinstance(reason, DeviceError)
    assert str(reason) == (
        "the probe program gave [[13.0, -4.5], [-11.0, 11.5]]"
        " instead of [[12.0, -5.5], [-12.0, 10.5]]"
    )


@pytest.mark.parametrize(
    ("error", "said"), [(DeviceError("lost"), "lost"), (SystemExit(1), "failed: SystemExit: 1")]
)
def test_probe_survives_whatever_a_backend_raises(error: BaseException, said: str) -> None:
    class Failing(TinyBackend):
        def synchronize(self, device):
            raise error

    assert said in str(probe(Failing(), Device(0, "x", "cpu")))


def test_best_prefers_kinds_in_order(site: Site) -> None:
    expected = []
    for name, kind in [
        ("zz", "discrete"),
        ("b", "integrated"),
        ("c", "cpu"),
        ("a", "cpu"),
        ("d", "cpu"),
        ("r", "reference"),
    ]:
        site.backend(name, tiny((0, name, kind)))
        expected.append(name)
    order = [name for name, _ in registry._ranked(registry.status_table())]
    assert order == expected
    assert registry.best().target.device.name == "zz"


def test_best_skips_what_does_not_work_and_says_why(site: Site) -> None:
    site.backend("gpu", tiny((0, "Wrong", "discrete"), base="WrongBackend"))
    site.backend("gone", "raise OSError('no library')")
    site.backend("good", TINY)
    choice = registry.best()
    assert choice.target.device.name == "Tiny One"
    reasons = {skipped.name: skipped.reason for skipped in choice.skipped}
    assert set(reasons) == {"gpu:0", "gone"}
    assert "the probe program gave" in reasons["gpu:0"]
    assert "OSError: no library" in reasons["gone"]


def test_best_with_nothing_working_gives_every_reason(site: Site) -> None:
    with pytest.raises(BackendUnavailable, match="pip install ptir-backend-ref"):
        registry.best()
    site.backend("gone", "raise OSError('no library')")
    with pytest.raises(BackendUnavailable, match=r"gone: broken: .*OSError: no library"):
        registry.best()


def test_foreign_distribution_is_named_and_never_recommended(site: Site) -> None:
    assert registry.foreign_ptir() is None
    site.add("ptir", "console_scripts", "x = y:z", "")
    site.modules.clear()
    message = str(registry.foreign_ptir())
    assert "the distribution 'ptir' 1.0 is another project" in message
    assert "pip install ptir`" not in message
    with pytest.raises(BackendUnavailable, match="another project"):
        registry.get("ref")


def test_listing_needs_no_numpy() -> None:
    program = (
        "import sys\nfrom ptir.backend import entries\n"
        "entries.listed('ptir.backends')\nassert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
