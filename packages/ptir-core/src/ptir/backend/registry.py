"""Which backends are installed, whether each works, and which device a name means.

Names come from the entry-point group ``ptir.backends`` and are listed without importing anything;
a backend is imported only when it is asked for. Nothing here ever falls back silently: ``get``
gives what was named or raises, ``best`` says what it skipped and why.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Final, Literal

from ptir.backend import entries, trial
from ptir.backend.contract import API_VERSION, Backend, Device, Target
from ptir.backend.declared import check_claimed, check_declared
from ptir.backend.entries import OFFICIAL, Entry, foreign_ptir, guard
from ptir.backend.import_places import explained
from ptir.backend.interpreter import Interpreter
from ptir.backend.probe import probe
from ptir.errors import BackendUnavailable, PluginError, PtirError, nearest, unknown_name

GROUP: Final = "ptir.backends"
_loading = threading.RLock()

Status = Literal["ok", "unavailable", "broken", "incompatible", "duplicate"]


@dataclass(frozen=True)
class BackendStatus:
    """One entry of ``ptir.backends`` and what became of it; ``reason`` is empty when it is ok."""

    name: str
    distribution: str
    version: str
    status: Status
    reason: str = ""
    devices: tuple[Device, ...] = ()
    backend: Backend | None = field(default=None, compare=False, repr=False)

    def record(self) -> dict[str, Any]:
        """The status as ``ptir backends --json`` prints it."""
        names = ("name", "distribution", "version", "status", "reason")
        try:
            devices = [asdict(d) | {"capabilities": self.capabilities(d)} for d in self.devices]
        except PluginError as error:
            return replace(self, status="broken", reason=str(error), devices=()).record()
        return {name: getattr(self, name) for name in names} | {"devices": devices}

    def capabilities(self, device: Device) -> dict[str, Any]:
        """What the backend says about one of its devices; raises ``PluginError``."""
        if self.backend is None:
            return {}
        with guard("capabilities()"):
            return dict(self.backend.capabilities(device))


@dataclass(frozen=True)
class Skipped:
    """A backend or device that ``best`` passed over, and why; absent where there is nothing to run.

    A machine without a GPU lacks what a backend for GPUs needs, and nothing is wrong with either.
    """

    name: str
    reason: str
    absent: bool = False


@dataclass(frozen=True)
class BestTarget:
    """The best working target and everything that ranks above it or could not be tried."""

    target: Target
    skipped: tuple[Skipped, ...]


class Incompatible(BackendUnavailable):
    """A backend was written for another version of the contract."""


def listed() -> tuple[Entry, ...]:
    """Every installed backend's entry, ordered by name; imports none of them."""
    return entries.listed(GROUP)


def status_table() -> list[BackendStatus]:
    """Import every installed backend under a guard and say what became of each.

    Those of strangers are imported in a process of their own before.
    """
    found = listed()
    twice = entries.claimed_twice(found)
    tried = tuple(entry for entry in found if entry.name not in twice)
    ends = trial.ended(tried, f"{__name__}:examine")
    return [examine(entry, twice.get(entry.name, ""), ends.get(entry, "")) for entry in found]


def examine(entry: Entry, duplicate: str = "", end: str = "") -> BackendStatus:
    """What becomes of ``entry``: imported, checked and asked for its devices, under a guard.

    One that is a ``duplicate``, or met its ``end`` in a trial, is not imported.
    """

    def failed(status: Status, reason: str) -> BackendStatus:
        said = reason if status in ("duplicate", "unavailable") else explained(entry, reason)
        return BackendStatus(entry.name, entry.distribution, entry.version, status, said)

    if duplicate:
        return failed("duplicate", duplicate)
    if end:
        return failed("broken", end)
    try:
        backend = _backend_of(entry)
        devices = _devices_of(backend)
    except Incompatible as error:
        return failed("incompatible", str(error))
    except PtirError as error:
        broken = isinstance(error, PluginError) and not isinstance(error, BackendUnavailable)
        return failed("broken" if broken else "unavailable", str(error))
    if not devices:
        return failed("unavailable", "it finds no device on this machine")
    return BackendStatus(entry.name, entry.distribution, entry.version, "ok", "", devices, backend)


def _backend_of(entry: Entry) -> Backend:
    with _loading:
        return _load_once(entry)


@cache
def _load_once(entry: Entry) -> Backend:
    found = entries.load(entry)
    _check_version(found)
    if not isinstance(found, Backend) and callable(found):
        with guard(f"call of {entry.value}()"):
            found = found()
        _check_version(found)
    if not isinstance(found, Backend):
        raise PluginError(
            f"{entry.value} is {type(found).__name__}, not a ptir.backend.Backend instance or a"
            " function without arguments that returns one"
        )
    check_declared(found, entry)
    return found


def _check_version(found: Any) -> None:
    """The handshake: same major version, and a minor version that this core has."""
    with guard("reading api_version"):
        version = getattr(found, "api_version", None)
    if version is None:
        return
    if not (isinstance(version, tuple) and [type(n) for n in version] == [int, int]):
        raise PluginError(f"api_version is {version!r}, not two integers such as {API_VERSION}")
    major, minor = version
    if major != API_VERSION[0] or minor > API_VERSION[1]:
        older = version < API_VERSION
        fix = "upgrade the backend" if older else "upgrade ptir-core"
        core = ".".join(map(str, API_VERSION))
        raise Incompatible(
            f"it needs backend API {major}.{minor} and this ptir-core has {core}; {fix}"
        )


def _devices_of(backend: Backend) -> tuple[Device, ...]:
    with guard("devices()"):
        devices = tuple(backend.devices())
    wrong = [d for d in devices if not isinstance(d, Device)]
    if wrong:
        raise PluginError(f"devices() gave {wrong[0]!r}, which is not a ptir.backend.Device")
    return devices


def load(name: str) -> Backend:
    """The backend called ``name``, imported now; raises ``BackendUnavailable`` with the cause."""
    return _working(name)[0]


def _working(name: str) -> tuple[Backend, tuple[Device, ...]]:
    found = listed()
    claims = [entry for entry in found if entry.name == name]
    if not claims:
        raise BackendUnavailable(_not_installed(name, [entry.name for entry in found]))
    status = examine(claims[0], entries.claimed_twice(claims).get(name, ""))
    if status.backend is None:
        where = f"{status.distribution} {status.version}"
        raise BackendUnavailable(f"backend {name!r} of {where} is {status.status}: {status.reason}")
    return status.backend, status.devices


def _not_installed(name: str, installed: list[str]) -> str:
    if name in OFFICIAL:
        have = ", ".join(installed) or "(none)"
        message = f"backend {name!r} is not installed: {pip_line(name)}; installed: {have}"
    else:
        message = unknown_name("backend", name, installed)
        missing = [official for official in OFFICIAL if official not in installed]
        for near in nearest(name.lower(), missing, most=1):
            message += f"; {near!r} is not installed: {pip_line(near)}"
        message += (
            f". A backend registers itself in the entry-point group {GROUP}: is its package"
            " installed in this environment? `ptir backends` lists what is"
        )
    return _with_foreign(message)


def pip_line(name: str) -> str:
    """The command that installs the official backend called ``name``."""
    return f"pip install ptir-backend-{name}"


def _with_foreign(message: str) -> str:
    foreign = foreign_ptir()
    return f"{message}\n{foreign}" if foreign else message


def get(text: str) -> Target:
    """The target written as ``NAME`` or ``NAME:DEVICE``.

    DEVICE is an index or a part of the device's name, else of its detail, in any case; without it
    the backend's first device is meant. Raises ``BackendUnavailable`` when there is no such
    backend or device, and ``PluginError`` when it claims what is no profile.
    """
    name, _, device = text.partition(":")
    backend, devices = _working(name)
    chosen = pick_device(name, devices, device)
    if isinstance(backend, Interpreter):  # of others it may open the device: the probe asks
        check_claimed(backend, chosen)
    return Target(backend, chosen)


def pick_device(name: str, devices: tuple[Device, ...], wanted: str) -> Device:
    """The device meant by an index or a name part; an empty ``wanted`` means the first."""
    if not wanted:
        return devices[0]
    part = wanted.lower()
    found = [d for d in devices if str(d.index) == wanted]
    found = found or [d for d in devices if d.name.lower() == part]
    found = found or [d for d in devices if part in d.name.lower()]
    found = found or [d for d in devices if part in d.detail.lower()]
    if len(found) == 1:
        return found[0]
    listing = ", ".join(f"{d.index} ({_described(d)})" for d in found or devices)
    if found:
        raise BackendUnavailable(f"{name}: {wanted!r} means several devices: {listing}")
    raise BackendUnavailable(f"{name}: no device {wanted!r}; it has {listing}")


def _described(device: Device) -> str:
    return f"{device.name}, {device.detail}" if device.detail else device.name


def rank(name: str, device: Device) -> int:
    """The place of a device of the backend ``name`` in the order of preference; lower is better."""
    order = ("discrete", "integrated", "c", "cpu", "reference")
    return order.index("c" if (name, device.kind) == ("c", "cpu") else device.kind)


@cache
def best() -> BestTarget:
    """The best target on which the probe runs, and what was skipped on the way to it.

    Discrete GPU, integrated GPU, CPU through the backend ``c``, CPU through others, reference;
    ties go by name. Raises ``BackendUnavailable`` with every reason when nothing works.
    """
    table = status_table()
    skipped = [
        Skipped(s.name, f"{s.status}: {s.reason}", absent=s.status == "unavailable")
        for s in table
        if s.status != "ok"
    ]
    for name, target in _ranked(table):
        failure = probe(target.backend, target.device)
        if failure is None:
            return BestTarget(target, tuple(skipped))
        skipped.append(Skipped(f"{name}:{target.device.index}", str(failure)))
    raise BackendUnavailable(_with_foreign(_nothing_works(skipped)))


def _ranked(table: Iterable[BackendStatus]) -> Iterator[tuple[str, Target]]:
    candidates = [
        (rank(status.name, device), status.name, place, Target(status.backend, device))
        for status in table
        if status.backend is not None
        for place, device in enumerate(status.devices)
    ]
    for _, name, _, target in sorted(candidates, key=lambda c: c[:3]):
        yield name, target


def _nothing_works(skipped: list[Skipped]) -> str:
    if not skipped:
        return f"no backend is installed: {pip_line('ref')}"
    reasons = "; ".join(f"{s.name}: {s.reason}" for s in skipped)
    return f"no installed backend works: {reasons}; see `ptir doctor`"
