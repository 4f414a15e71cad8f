"""Which devices are listed and in which order, what is said about them, and what to do without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.errors import BackendUnavailable
from ptir_backend_opencl import drivers, platforms
from ptir_backend_opencl.backend import OpenCLBackend
from ptir_backend_opencl.device import OpenCLDevice
from ptir_backend_opencl.dialect import OpenCLC

cl = pytest.importorskip("pyopencl")

GPU, CPU = cl.device_type.GPU, cl.device_type.CPU


def driver_device(name: str, type: int, **given: Any) -> Any:
    """A device as PyOpenCL describes one."""
    platform = given.pop("platform", "Some Platform")
    known = {
        "host_unified_memory": False,
        "global_mem_size": 8 << 30,
        "available": True,
        "compiler_available": True,
        "version": "OpenCL 3.0 ",
        "platform": SimpleNamespace(name=platform),
    }
    return SimpleNamespace(name=name, type=type, **{**known, **given})


INTEGRATED = driver_device("Intel UHD", GPU, host_unified_memory=True)
SMALL = driver_device("gfx906", GPU)
LARGE = driver_device("gfx1100\0", GPU, global_mem_size=24 << 30)
POCL = driver_device("pthread-EPYC", CPU, platform="Portable Computing Language")
INTEL = driver_device("AMD EPYC", CPU, platform="Intel(R) OpenCL")
SLEEPING = driver_device("asleep", GPU, available=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> OpenCLBackend:
    """A backend on a machine with many devices, listed worst first."""
    groups = [[POCL, SLEEPING], [INTEL], [INTEGRATED, SMALL], [LARGE]]
    found = [SimpleNamespace(get_devices=lambda group=group: group) for group in groups]
    monkeypatch.setattr(cl, "get_platforms", lambda: found)
    return OpenCLBackend()


def test_discrete_comes_before_integrated_before_cpu(machine: OpenCLBackend) -> None:
    listed = machine.devices()
    names = ["gfx1100", "gfx906", "Intel UHD", "AMD EPYC", "pthread-EPYC"]
    assert [device.name for device in listed] == names
    assert [device.index for device in listed] == list(range(5))
    kinds = ["discrete", "discrete", "integrated", "cpu", "cpu"]
    assert [device.kind for device in listed] == kinds


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("", "gfx1100"), ("1", "gfx906"), ("GFX11", "gfx1100"), ("portable", "pthread-EPYC")],
)
def test_a_device_is_named_by_number_or_by_a_part(
    machine: OpenCLBackend, wanted: str, name: str
) -> None:
    assert registry.pick_device("opencl", tuple(machine.devices()), wanted).name == name


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("gfx", r"'gfx' means several devices: 0 \(gfx1100, .*1 \(gfx906"),
        ("epyc", r"'epyc' means several devices: 3 \(AMD EPYC, Intel.*4 \(pthread-EPYC, Portable"),
        ("rtx", r"no device 'rtx'; it has 0 \(gfx1100, .*, 4 \(pthread"),
    ],
)
def test_an_unclear_or_unknown_device_is_refused_with_the_names(
    machine: OpenCLBackend, wanted: str, words: str
) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        registry.pick_device("opencl", tuple(machine.devices()), wanted)


def test_a_machine_without_usable_devices_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping = SimpleNamespace(get_devices=lambda: [SLEEPING])
    monkeypatch.setattr(cl, "get_platforms", lambda: [sleeping])
    with pytest.raises(BackendUnavailable, match=r"available with a compiler \(asleep\); install"):
        OpenCLBackend().devices()
    monkeypatch.setattr(cl, "get_platforms", lambda: [])
    with pytest.raises(BackendUnavailable, match="have no device; install a driver"):
        OpenCLBackend().devices()


@pytest.mark.parametrize(("most", "taken"), [(1, 1), (256, 256), (448, 256), (4096, 4096)])
def test_workgroups_are_as_large_as_halves_can_be_summed(most: int, taken: int) -> None:
    assert platforms.work_group_size(SimpleNamespace(max_work_group_size=most)) == taken


def test_capabilities_are_plain_facts(opencl: Target) -> None:
    found = dict(opencl.backend.capabilities(opencl.device))
    assert json.loads(json.dumps(found)) == found
    assert {name: type(value) for name, value in found.items()} == {
        "platform": str,
        "opencl": str,
        "driver": str,
        "fp16": bool,
        "fp64": bool,
        "subgroups": bool,
        "compute_units": int,
        "work_group_size": int,
        "local_memory_bytes": int,
        "local_memory_dedicated": bool,
        "memory_bytes": int,
        "largest_allocation_bytes": int,
        "chain_memories": int,
        "shares_host_memory": bool,
    }
    traits = opencl.backend.opened(opencl.device).device.traits
    assert found["largest_allocation_bytes"] == traits.max_allocation_bytes
    assert found["fp64"] == traits.has_f64


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("error: unknown target CPU 'generic'", "apt-get install pocl-opencl-icd"),
        ("clBuildProgram failed: BUILD_PROGRAM_FAILURE", "update the driver"),
        ("the probe program gave [[0.0]]", None),
    ],
)
def test_known_problems_have_a_remedy(said: str, fix: str | None) -> None:
    found = OpenCLBackend().fix_for(said)
    assert found is None if fix is None else found is not None and fix in found


# --- drivers ---


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    return tmp_path


def test_each_registered_driver_is_tried(vendors: Path) -> None:
    library = vendors / "libnonsense.so"
    library.write_text("not a library")
    texts = {"a": "libc.so.6", "b": "/opt/gone/libintelocl.so", "c": "", "d": str(library)}
    for name, text in texts.items():
        (vendors / f"{name}.icd").write_text(text + "\n")
    found = {driver.icd.stem: driver for driver in drivers.drivers()}
    assert list(found) == ["a", "b", "c", "d"]
    assert not found["a"].problem and not found["a"].fix
    assert found["b"].problem == "names /opt/gone/libintelocl.so, which does not exist"
    assert "real path into" in found["b"].fix
    assert found["c"].problem == "names no library"
    assert found["d"].problem.startswith("does not load: ")
    assert all(found[name].fix for name in "bcd")


def test_one_icd_file_may_be_named_instead_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    icd = tmp_path / "only.icd"
    icd.write_text("libc.so.6")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(icd))
    assert [driver.icd for driver in drivers.drivers()] == [icd]


def test_intels_runtime_stands_beside_every_registered_driver(
    vendors: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path_factory.mktemp("runtime")
    loaded: list[str] = []
    monkeypatch.setattr(drivers, "intel_runtime", lambda: runtime)
    monkeypatch.setattr(drivers.ctypes, "CDLL", lambda path, mode: loaded.append(path))
    (vendors / "gpu.icd").write_text("libgpu.so\n")
    (vendors / "intel-cpu.icd").write_text("/wrong/libintelocl.so\n")
    with drivers.registered():
        private = Path(os.environ["OCL_ICD_VENDORS"])
        texts = {path.name: path.read_text().strip() for path in private.iterdir()}
    library = str(runtime / "libintelocl.so")
    assert texts == {"gpu.icd": "libgpu.so", "ptir-intel-cpu.icd": library}
    assert [Path(path).name for path in loaded] == list(drivers.INTEL_NEEDS)
    assert os.environ["OCL_ICD_VENDORS"] == str(vendors)
    assert not private.exists()


def test_without_intels_runtime_nothing_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "intel_runtime", lambda: None)
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    with drivers.registered():
        assert "OCL_ICD_VENDORS" not in os.environ


# --- commands on machines that lack something ---


def command(*arguments: str, before: str = "", **environment: str) -> Any:
    code = f"import sys\n{before}\nfrom ptir.cli.main import main\nsys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(params=["no PyOpenCL", "no driver", "wrong path"])
def lacking(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, str], str]:
    """How to start a process that lacks something, and what it must say."""
    if request.param == "no PyOpenCL":
        return {"before": "sys.modules['pyopencl'] = None"}, "pip install pyopencl"
    place = {"OCL_ICD_VENDORS": str(tmp_path)}
    if request.param == "no driver":
        return place, "apt-get install pocl-opencl-icd"
    (tmp_path / "x.icd").write_text("/opt/gone/libx.so")
    return place, "names /opt/gone/libx.so, which does not exist"


@pytest.mark.slice(1)
@pytest.mark.skipif(drivers.intel_runtime() is not None, reason="Intel's runtime is always there")
def test_commands_work_without_opencl_and_name_the_fix(
    lacking: tuple[dict[str, str], str],
) -> None:
    how, fix = lacking
    listed = command("backends", "--json", **how)
    assert listed.returncode == 0, listed.stderr
    (row,) = (row for row in json.loads(listed.stdout) if row["name"] == "opencl")
    assert row["status"] == "unavailable" and fix in row["reason"]
    doctor = command("doctor", **how)
    assert doctor.returncode == 0, doctor.stderr
    assert any(fix in line for line in doctor.stdout.splitlines() if line.startswith("fix "))
    asked = command("run", "demo", "-p", "X", "-n", "1", "--backend", "opencl", **how)
    assert asked.returncode == 3
    assert "PTIR-402" in asked.stderr and fix in asked.stderr
    other = command("run", "demo", "-p", "X", "-n", "1", "--backend", "ref", **how)
    assert other.returncode == 0, other.stderr


def test_doctor_lists_the_device_its_capabilities_and_its_drivers(opencl: Target) -> None:
    found = command("doctor", "--json")
    assert found.returncode == 0, found.stderr
    checks = {check["what"]: check for check in json.loads(found.stdout)}
    where = f"backend opencl:{opencl.device.index}"
    assert checks[where]["ok"] and "ran the probe program" in checks[where]["found"]
    assert "fp64" in checks[f"{where} capabilities"]["found"]
    assert any(name.startswith("backend opencl: ") and name.endswith(".icd") for name in checks)


@pytest.mark.parametrize(
    ("device", "hidden"), [(INTEL, True), (INTEGRATED, False), (POCL, False), (LARGE, False)]
)
def test_local_ids_are_hidden_from_intels_compiler_for_processors(
    device: Any, hidden: bool
) -> None:
    """``test_two_caches_of_a_program_are_written`` says what happens where they are not."""
    assert platforms.misreads_local_ids(device) == hidden
    for subgroup in (0, 16):
        primitives = OpenCLC(doubles=True, subgroup=subgroup, hidden=hidden).workgroup
        assert (primitives.local_id == "get_local_id(0)") != hidden


def test_a_device_hides_local_ids_where_they_are_misread(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, driver_s = platforms.found()[opencl.device.index]
    for hidden in (True, False):
        monkeypatch.setattr(platforms, "misreads_local_ids", lambda _, hidden=hidden: hidden)
        spelled = OpenCLDevice(driver_s).dialect.workgroup.local_id
        assert (spelled == "get_local_id(0)") != hidden
