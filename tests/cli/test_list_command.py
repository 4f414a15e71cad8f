"""``ptir list``: what it finds, why something does not run, and the speed that it estimates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

import ptir
from gguf_models import kind_of_matrices, write
from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.checkpoint import MappedSource, open_checkpoint, save_folder, save_single_file
from ptir.checkpoint.gguf import GgufSource
from ptir.cli import kept_bandwidth
from ptir.cli.estimates import basis_of, measured_shares
from ptir.cli.kept_bandwidth import BANDWIDTHS, bandwidth_of, keep, machine
from ptir.cli.main import main
from ptir.errors import BackendUnavailable
from ptir.runtime import catalog
from ptir.runtime.catalog import REACHED, estimated_speed, in_few_words, token_bytes
from ptir.runtime.specs import located
from running import REF, Command, command, llama_folder, small_checkpoint

__all__ = ["command"]

SPEED = 5e9
SHARES = REACHED["c"]
STORES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "OLLAMA_MODELS", "LLAMA_CACHE")


class Probe:
    """Finds the bandwidths given, one after the other."""

    kind = "a test"

    def __init__(self, *found: float) -> None:
        self.left = list(found)

    def bandwidth(self) -> float:
        return self.left.pop(0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a cache folder without anything, and memory of a known bandwidth.

    The reference, which tests run on, stands for a backend that was measured.
    """
    monkeypatch.setattr(catalog, "REACHED", {**REACHED, "ref": SHARES})
    for name in (*STORES, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_bandwidth, "probe_of", lambda target: Probe(SPEED))
    return tmp_path / "home"


def snapshot(home: Path, name: str) -> Path:
    folder = home / f".cache/huggingface/hub/models--{name.replace('/', '--')}/snapshots/r1"
    folder.mkdir(parents=True)
    return folder


def rows(found: Any) -> dict[str, Any]:
    return {one["name"]: one for one in found.value["models"]}


def stocked(home: Path) -> None:
    """Models of every store, and what is none."""
    save_folder(small_checkpoint(), snapshot(home, "o/plain"), overwrite=True)
    quantized = snapshot(home, "o/q-GGUF")
    llama = open_checkpoint(llama_folder(home / "l", hidden_size=64))
    write(quantized / "q-Q8_0.gguf", llama, kind_of_matrices(Kind.Q8_0))
    for name in ("mmproj-q-F16.gguf", "q-Q4_K_M.gguf"):
        (quantized / name).write_bytes(b"GGUF and nothing more")
    adapter = snapshot(home, "o/adapter")
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    unknown = save_folder(small_checkpoint(), snapshot(home, "o/unknown"), overwrite=True)
    config = json.loads((unknown / "config.json").read_text())
    (unknown / "config.json").write_text(json.dumps({**config, "model_type": "mamba9"}))
    foreign = home / ".lmstudio/models/o/foreign"
    foreign.mkdir(parents=True)
    file = write(foreign / "foreign-F32.gguf", llama).path
    file.write_bytes(file.read_bytes().replace(b"llama", b"zamba"))
    lost = home / ".cache/llama.cpp"
    lost.mkdir(parents=True)
    (lost / "gone-Q4_0.gguf").symlink_to(home / "nothing")


def test_every_model_of_this_machine_is_a_row(home: Path, command: Command) -> None:
    stocked(home)
    found = rows(command("list", "--json"))
    runs = {name: one for name, one in found.items() if one["runs"]}
    assert set(runs) == {"demo", "o/plain", "o/q-GGUF:Q8_0"}
    assert all(str(located(name)) == one["path"] for name, one in runs.items())
    assert [(one["family"], one["format"]) for one in runs.values()] == [
        ("gpt2", "f16"),
        ("gpt2", "f32"),
        ("llama", "Q8_0"),
    ]
    folder = Path(found["o/plain"]["path"])
    assert found["o/plain"]["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    wanted = {
        "o/q-GGUF:Q4_K_M": ("", "", "21 bytes; a GGUF file has at least 24"),
        "o/q-GGUF:mmproj-q-F16": ("", "", "a projector of images or sound"),
        "o/adapter": ("", "", "a LoRA adapter"),
        "o/unknown": ("mamba9", "f32", "unknown model_type 'mamba9'"),
        "o/foreign:F32": ("zamba", "F32", "'general.architecture': 'zamba' "),
        "gone-Q4_0": ("", "", "a link to a file that is gone"),
    }
    assert set(found) == {*runs, *wanted}
    for name, (family, format, why) in wanted.items():
        one = found[name]
        assert (one["family"], one["format"]) == (family, format), name
        assert why in one["problem"] and one["estimated_tokens_per_second"] is None, one


@pytest.mark.parametrize(
    ("stored", "file_type", "called"),
    [
        (Kind.Q4_0, None, "Q4_0"),
        (Kind.Q4_0, 2, "Q4_0"),
        (Kind.Q4_0, 7, "Q4_0"),  # says Q8_0, and holds none
        (Kind.Q4_K, 15, "Q4_K_M"),
        (Kind.Q4_K, 14, "Q4_K_S"),
        (Kind.F16, 1, "F16"),
        (Kind.Q8_0, 4711, "Q8_0"),
        (Kind.Q8_0, "Q4_K_M", "Q8_0"),
    ],
)
def test_the_format_is_what_the_file_holds_whatever_it_is_called(
    tmp_path: Path, command: Command, stored: Kind, file_type: Any, called: str
) -> None:
    llama = open_checkpoint(llama_folder(tmp_path / "l", hidden_size=256, intermediate_size=256))

    def says(writer: GGUFWriter) -> None:
        add = writer.add_string if isinstance(file_type, str) else writer.add_uint32
        if file_type is not None:
            add("general.file_type", file_type)

    (tmp_path / "g").mkdir()
    path = tmp_path / "g/m-Q8_0.gguf"
    write(path, llama, kind_of_matrices(stored), vocabulary=says)
    assert rows(command("list", path.parent, "--json"))[str(path)]["format"] == called


def test_the_table_has_a_line_for_each_with_its_reason_in_few_words(
    home: Path, command: Command
) -> None:
    stocked(home)
    done = command("list")
    lines = done.out.splitlines()
    words = ["model", "family", "format", "size", "tok/s", "does", "not", "run", "because"]
    assert lines[0].split() == words
    assert len(lines) == 1 + 9 and done.code == 0
    line = next(line for line in lines if line.startswith("o/unknown"))
    assert line.rstrip().endswith("unknown model_type 'mamba9'")
    assert max(map(len, lines)) < 160
    assert "bandwidth of 5.0 GB/s" in done.err


def test_folders_and_files_that_are_given_are_listed_by_their_paths(
    tmp_path: Path, command: Command
) -> None:
    folder = save_folder(small_checkpoint(), tmp_path / "g/a")
    (tmp_path / "g/b/c").mkdir(parents=True)
    single = save_single_file(open_checkpoint(folder), tmp_path / "g/b/one.safetensors")
    part = write(tmp_path / "g/b/c/m-F32.gguf", open_checkpoint(folder), parts=9).path
    nothing = tmp_path / "nothing"
    found = rows(command("list", tmp_path / "g", nothing, "--json"))
    first = next(part.parent.glob("m-F32-00001-of-*.gguf"))
    assert set(found) == {"demo", str(folder), str(single), str(first), str(nothing)}
    assert found[str(nothing)]["problem"].endswith("no such file or folder")
    assert all(one["runs"] for name, one in found.items() if name != str(nothing))
    twice = command("list", folder, folder, single, "--json").value["models"]
    assert [one["name"] for one in twice] == ["demo", str(folder), str(single)]


def test_no_weight_is_read(home: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("a weight was read")

    stocked(home)
    for source in (MappedSource, GgufSource):
        monkeypatch.setattr(source, "read", read)
    monkeypatch.setattr(GgufSource, "blocks", read)
    assert sum(one["runs"] for one in rows(command("list", "--json")).values()) == 3


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (
            "/m: config.json: unknown model_type 'm9' (nearest: mpt); known: a, b",
            "unknown model_type 'm9'",
        ),
        (
            "/m: 21 bytes; a GGUF file has at least 24; the file is cut or damaged: fetch it again",
            "21 bytes; a GGUF file has at least 24",
        ),
        ("key 'a': 'w' (nearest: q3, q2) is not there; b", "key 'a': 'w' is not there; b"),
        ("/m/config.json is no JSON but a page", "config.json is no JSON but a page"),
        ("a" * 90, "a" * 77 + "..."),
        ("/m: is no GGUF file but a page, which came; get it", "a page, which came; get it"),
        ("", ""),
    ],
)
def test_a_reason_is_what_fits_of_an_error(problem: str, said: str) -> None:
    assert in_few_words(problem, Path("/m")) == said


def test_an_error_that_nobody_expected_is_a_row_too(
    home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocked(home)
    opened = catalog.open_checkpoint

    def failing(path: Path) -> Any:
        if path.name == "q-Q8_0.gguf":
            raise ZeroDivisionError("by 0")
        return opened(path)

    monkeypatch.setattr(catalog, "open_checkpoint", failing)
    found = rows(command("list", "--json"))
    assert found["o/q-GGUF:Q8_0"]["problem"] == "ZeroDivisionError: by 0"
    assert found["o/plain"]["runs"]


def test_models_are_listed_where_no_backend_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing() -> None:
        raise BackendUnavailable("nothing works")

    monkeypatch.setattr(registry, "best", nothing)
    assert main(["list", "--json"]) == 0
    out, err = capsys.readouterr()
    (demo,) = json.loads(out)["models"]
    assert demo["runs"] and demo["estimated_tokens_per_second"] is None
    assert "no speed is estimated: nothing works" in err


# --- the estimate ---


@pytest.mark.parametrize("options", [{}, {"dtype": "f32"}, {"quant": "int8"}, {"quant": "int4"}])
def test_a_token_reads_all_weights_but_tables_of_rows(options: dict[str, str]) -> None:
    model = ptir.load_model("demo", backend=REF, **options)  # type: ignore[arg-type]
    held = {name: model.store.type(name).nbytes for name in model.store.source.names()}
    found = token_bytes(model.checkpoint, **options)
    assert sum(found.values()) == sum(held.values()) - held["wpe.weight"]
    bits = {"f32": 32, "int8": 8, "int4": 4}.get("".join(options.values()), 16)
    assert found[bits] > 0.9 * sum(found.values())


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_that_is_the_head_too_is_read(tied: bool, tmp_path: Path) -> None:
    path = llama_folder(tmp_path, tie_word_embeddings=tied, hidden_size=64)
    written = write(tmp_path / "m.gguf", open_checkpoint(path), kind_of_matrices(Kind.Q4_0)).path
    for one in (path, written):
        model = ptir.load_model(one, backend=REF)
        held = {name: model.store.type(name).nbytes for name in model.store.source.names()}
        table = sum(n for name, n in held.items() if name.startswith("embed_tokens"))
        read = sum(token_bytes(model.checkpoint).values())
        assert table and read == sum(held.values()) - table * (not tied)


def test_the_speed_is_the_bandwidth_over_the_bytes_of_a_token(command: Command) -> None:
    value = command("list", "--json").value
    (demo,) = value["models"]
    assert value["bytes_per_second"] == SPEED
    matrices = demo["bytes_per_token"] * 0.99  # the others are vectors
    narrow = SPEED * SHARES[16] / demo["bytes_per_token"]
    assert narrow <= demo["estimated_tokens_per_second"] <= SPEED * SHARES[16] / matrices
    assert 5.6e6 < demo["bytes_per_token"] < 5.9e6
    assert estimated_speed({32: 880, 4: 670}, 2000.0, SHARES) == pytest.approx(1.0)
    wider, narrower = (estimated_speed({bits: 700}, 1000.0, SHARES) for bits in (8, 6))
    assert wider == narrower


def test_a_speed_is_that_of_the_backend_that_was_asked_for_or_none_with_the_reason(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "REACHED", {"ref": {32: 0.5}})
    half = command("list", "--json").value
    assert half["backend"].startswith("ref") and half["no_estimate_because"] is None
    assert half["models"][0]["estimated_tokens_per_second"] == pytest.approx(
        0.5 * SPEED / half["models"][0]["bytes_per_token"]
    )
    monkeypatch.setattr(catalog, "REACHED", {"c": {32: 0.5}})
    none = command("list", "--json").value
    reason = "nobody has measured which share of the bandwidth ref reaches; `ptir bench MODEL`"
    assert none["no_estimate_because"].startswith(reason)
    assert none["bytes_per_second"] is None
    assert none["models"][0]["estimated_tokens_per_second"] is None
    done = command("list")
    assert "no speed is estimated: nobody has measured" in done.err and "GB/s" not in done.err


def test_shares_of_processors_are_not_those_of_other_devices() -> None:
    other = Target(REF.backend, replace(REF.device, kind="discrete", name="other"))
    assert measured_shares(REF) == SHARES and not measured_shares(other)
    assert "ref on such a device reaches" in basis_of(other).problem


def test_bench_prints_the_estimate_of_list(command: Command) -> None:
    bench = command("bench", "demo", "-p", 0, "-n", 2, "-r", 1, "--json").value
    listed = command("list", "--json").value
    (demo,) = listed["models"]
    assert demo["estimated_tokens_per_second"] == bench["estimated_tokens_per_second"]
    assert listed["bytes_per_second"] >= bench["probe"]["bytes_per_second"]
    table = command("bench", "demo", "-p", 0, "-n", 2, "-r", 1).out
    assert "estimate of `ptir list` for decoding: " in table


# --- the bandwidth that is kept ---


def test_a_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(3e9, 4e9)
    monkeypatch.setattr(kept_bandwidth, "probe_of", lambda target: probe)
    assert [bandwidth_of(REF), bandwidth_of(REF)] == [3e9, 3e9]
    device = Target(REF.backend, replace(REF.device, kind="discrete", name="other"))
    assert machine(device) != machine(REF)
    assert bandwidth_of(device) == 4e9
    assert bandwidth_of(REF) == 3e9


def test_the_greatest_bandwidth_is_kept() -> None:
    assert [keep(REF, found, "a test") for found in (3e9, 2e9, 5e9, 4e9)] == [3e9, 3e9, 5e9, 5e9]
    assert bandwidth_of(REF) == 5e9


@pytest.mark.parametrize("text", ["[", '{"bandwidths": {"a": {"bytes_per_second": -1.0}}}', "[]"])
def test_a_damaged_file_is_measured_again_and_replaced(text: str) -> None:
    BANDWIDTHS.path.parent.mkdir()
    BANDWIDTHS.path.write_text(text)
    with pytest.warns(RuntimeWarning, match=r"no list of bandwidths .* it is measured again"):
        assert bandwidth_of(REF) == SPEED
    assert bandwidth_of(REF) == SPEED


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "file/below"))
    with pytest.warns(RuntimeWarning, match=r"cannot be written .* the next run measures again"):
        assert bandwidth_of(REF) == SPEED
