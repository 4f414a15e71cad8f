"""``ptir doctor``: what is installed, which devices run a kernel, and the fix for each problem."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click

from ptir import plugins
from ptir.backend.contract import Device
from ptir.backend.entries import foreign_ptir, guard
from ptir.backend.probe import OPS, probe
from ptir.backend.registry import BackendStatus, pip_line, status_table
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options
from ptir.cli.hidden import hidings, unsaid
from ptir.cli.plugin_commands import one_line
from ptir.cli.versions import edited_folder, version_of
from ptir.errors import (
    BackendUnavailable,
    CompileError,
    DeviceError,
    OutOfMemory,
    PluginError,
    PtirError,
    UnsupportedError,
)
from ptir.plugins import PluginStatus

REQUIRED: Final = (
    *("ptir-core", "numpy", "ml_dtypes", "tokenizers", "safetensors"),
    *("click", "pluggy", "rich"),
)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was found, and the fix when it is a problem."""

    what: str
    found: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is nothing to fix."""
        return not self.fix


@click.command()
@common_options
def command(common: CommonOptions) -> None:
    """Check this installation, run a kernel on every device, and name the fix for each problem.

    Exits with 3 when no device works, with 0 when one does, whatever else is broken.
    """
    table = [(s, device_failures(s)) for s in status_table()]
    plugins.try_strangers()
    loaded = plugins.install()
    checks = [*_environment(), *_backend_checks(table), *map(_plugin, loaded.statuses())]
    found = list(_with_hidings(checks))
    if common.json:
        show.value([_record(check) for check in found])
    else:
        show.table(
            ("", "check", "found"), [("ok" if c.ok else "!!", c.what, c.found) for c in found]
        )
        for check in found:
            if not check.ok:
                show.sentence(f"fix {check.what}: {check.fix}")
    if not any(None in failures for _, failures in table):
        raise BackendUnavailable(f"no installed backend works; the fixes are above, or {INSTALL}")


INSTALL: Final = pip_line("ref")


def _record(check: Check) -> dict[str, Any]:
    return {**asdict(check), "ok": check.ok}


def _environment() -> Iterator[Check]:
    yield Check("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for name in REQUIRED:
        version = version_of(name)
        fix = "" if version else f"pip install {name}"
        yield Check(name, version or "not installed", fix)
    yield _blas()
    if foreign := foreign_ptir():
        yield Check("ptir", "another project's distribution", foreign)


def _with_hidings(checks: Sequence[Check]) -> Iterator[Check]:
    """The checks, with what hides a backend or plugin: the fix where that fails, else one more."""
    hidden = hidings()
    for check in checks:
        hiding = hidden.get(check.what)
        yield replace(check, fix=hiding.fix) if hiding and str(hiding) in check.found else check
    for what, hiding in unsaid(check.found for check in checks).items():
        yield Check(f"{what} is hidden", str(hiding), hiding.fix)


def _blas() -> Check:
    try:
        with guard("numpy.show_config"):
            import numpy as np

            config: Any = np.show_config(mode="dicts")
            blas = config["Build Dependencies"]["blas"]
            return Check("numpy BLAS", f"{blas['name']} {blas['version']}")
    except PluginError as error:
        return Check("numpy BLAS", str(error), "pip install --force-reinstall numpy")


def device_failures(status: BackendStatus) -> list[PtirError | None]:
    """For each device of a backend, why the probe failed on it, or None where it worked."""
    if status.backend is None:
        return []
    return [probe(status.backend, device) for device in status.devices]


def _backend_checks(
    table: list[tuple[BackendStatus, list[PtirError | None]]],
) -> Iterator[Check]:
    if not table:
        yield Check("backends", "none is installed", INSTALL)
    for status, failures in table:
        what = f"backend {status.name}"
        if not failures:
            found = f"{status.status}: {one_line(status.reason)}"
            yield Check(what, found, _fix(status))
        for device, failure in zip(status.devices, failures, strict=True):
            where = f"{what}:{device.index}"
            works = Check(where, f"{device.name} ({device.kind}) ran the probe program")
            if failure is None:
                yield works
                yield from _capabilities(status, device, where)
            else:
                fix = _device_fix(status, device, failure)
                yield replace(works, found=f"{device.name}: {one_line(str(failure))}", fix=fix)
        yield from _findings(status)


def _capabilities(status: BackendStatus, device: Device, where: str) -> Iterator[Check]:
    """What the device can do, on one line."""
    try:
        known = status.capabilities(device)
    except PluginError as error:
        yield Check(f"{where} capabilities", str(error), _fix(replace(status, status="broken")))
        return
    if known:
        listed = ", ".join(f"{name} {_plain(value)}" for name, value in known.items())
        yield Check(f"{where} capabilities", listed)


def _plain(value: Any) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


LOOK: Final = "`ptir-conformance run --backend {name}` says what is wrong"
ADVICE: Final[tuple[tuple[type[PtirError], str], ...]] = (
    (
        UnsupportedError,
        f"the backend lacks an op: the probe needs {' and '.join(OPS)} on f32, as every model does;"
        " `ptir-conformance support --backend {name}` lists what it runs; name another one with"
        " --backend",
    ),
    (
        OutOfMemory,
        "free memory of {device}: the probe needs a few bytes; or name another device with"
        " --backend",
    ),
    (
        DeviceError,
        f"check the driver of {{device}}, or name another device with --backend; {LOOK}",
    ),
    (
        CompileError,
        f"check the compiler that the backend uses for {{device}}; {LOOK}",
    ),
    (
        PtirError,
        f"it is a mistake in {{distribution}} {{version}}: upgrade it, or tell its authors; {LOOK}",
    ),
)
"""What to do about a probe that failed, by the error; the first class that it is one of counts."""


def _device_fix(status: BackendStatus, device: Device, failure: PtirError) -> str:
    assert status.backend is not None
    advice = next(text for kind, text in ADVICE if isinstance(failure, kind))
    folder = edited_folder(status.distribution)
    if folder and not isinstance(failure, UnsupportedError):
        advice = "correct the backend in {folder}; " + LOOK
    names = {"name": status.name, "device": device.name, "folder": folder}
    general = advice.format(**names, distribution=status.distribution, version=status.version)
    try:
        with guard("fix_for()"):
            return status.backend.fix_for(str(failure)) or general
    except PluginError as error:
        return f"{general} ({error})"


def _findings(status: BackendStatus) -> Iterator[Check]:
    """What the backend says about what it depends on."""
    what = f"backend {status.name}"
    if status.backend is None:
        return
    try:
        with guard("findings()"):
            found = [(f.what, f.found, f.fix) for f in status.backend.findings()]
    except PluginError as error:
        yield Check(what, str(error), _fix(replace(status, status="broken")))
        return
    for name, said, fix in found:
        yield Check(f"{what}: {name}", one_line(said), fix)


def _fix(status: BackendStatus | PluginStatus) -> str:
    reinstall = f"pip install --upgrade --force-reinstall {status.distribution}"
    match status.status:
        case "ok":
            return ""
        case "duplicate" | "incompatible":
            return one_line(status.reason)
        case "unavailable":
            return f"{one_line(status.reason)}; check the driver or library that it needs"
        case "broken" if folder := edited_folder(status.distribution):
            return f"correct it in {folder}, then look again with `ptir doctor`"
        case "broken":
            remove = f"pip uninstall {status.distribution}"
            return f"{reinstall}; if that does not help, {remove} and tell its authors"


def _plugin(status: PluginStatus) -> Check:
    found = f"{status.status}: {one_line(status.reason) or ', '.join(status.hooks)}"
    return Check(f"plugin {status.name}", found, _fix(status))
