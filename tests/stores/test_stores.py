"""Models that programs keep on this machine: trees of each store, and who a name means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptir.checkpoint import save_folder
from ptir.errors import CheckpointError, UsageError
from ptir.runtime.specs import HubId, located, split_hub_id
from ptir.stores import choose, companion, found_models, grouped, typed_names, within
from running import small_checkpoint

DIGEST = "ab" * 32
VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "OLLAMA_MODELS", "LLAMA_CACHE")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any store."""
    for name in (*VARIABLES, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")


def snapshot(cache: Path, name: str, revision: str = "r1", main: str | None = "r1") -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    if main is not None:
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / "main").write_text(main)
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    return folder


def hub(home: Path) -> Path:
    return home / ".cache/huggingface/hub"


def manifest(root: Path, where: str, value: Any = None, *, blob: bool = True) -> Path:
    path = root / "manifests" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:1"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}"},
    ]
    path.write_text(json.dumps({"layers": layers} if value is None else value))
    if blob:
        touch(root / "blobs" / f"sha256-{DIGEST}")
    return path


def names() -> list[str]:
    return typed_names(found_models())


# --- each store ---


def test_a_hub_repository_is_its_folder_or_its_files(home: Path) -> None:
    save_folder(small_checkpoint(), snapshot(hub(home), "owner/plain") / "x")
    folder = hub(home) / "models--owner--plain/snapshots/r1"
    for file in (folder / "x").iterdir():
        file.rename(folder / file.name)
    quantized = snapshot(hub(home), "owner/m-GGUF")
    touch(*(quantized / n for n in ("m-Q4_K_M.gguf", "sub/m-q8_0.gguf", "mmproj-F16.gguf")))
    touch(quantized / "config.json")
    assert located("owner/plain") == folder
    assert located("owner/m-GGUF:q4_k_m") == quantized / "m-Q4_K_M.gguf"
    assert located("m-gguf:Q8_0") == quantized / "sub/m-q8_0.gguf"
    assert located("m-Q4_K_M.gguf") == located("m-q4_k_m") == quantized / "m-Q4_K_M.gguf"
    assert set(names()) == {
        "owner/plain",
        "owner/m-GGUF:Q4_K_M",
        "owner/m-GGUF:q8_0",
        "owner/m-GGUF:mmproj-F16",
    }


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_the_hub_cache_is_where_variables_say(
    variable: str, below: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    folder = snapshot(home / "elsewhere" / below, "o/n")
    touch(folder / "config.json")
    assert located("o/n") == folder


def test_snapshots_are_those_that_main_names(home: Path) -> None:
    first, second = (snapshot(hub(home), "o/n", one, "r2") for one in ("r1", "r2"))
    touch(first / "config.json", second / "config.json")
    assert located("o/n") == second
    (second.parent.parent / "refs/main").unlink()
    with pytest.raises(CheckpointError, match=r"main names none of its 2 snapshots; give the path"):
        located("o/n")
    (second.parent.parent / "refs/main").write_text("r3")
    with pytest.raises(CheckpointError, match=r"snapshot r3 that main names is not there; fetch"):
        located("o/n")
    only = snapshot(hub(home), "o/one", "v1", None)
    touch(only / "config.json")
    assert located("o/one") == only
    (hub(home) / "models--o--none").mkdir()
    with pytest.raises(CheckpointError, match=r"it has no snapshot; fetch it with `ptir pull o/"):
        located("o/none")


def test_a_broken_link_is_a_model_with_that_problem(home: Path) -> None:
    folder = snapshot(hub(home), "o/n")
    (folder / "n-Q8_0.gguf").symlink_to(home / "gone")
    assert names() == ["o/n:Q8_0"]
    said = r"model 'o/n' of the Hugging Face cache: n-Q8_0.gguf is a link to a file that is gone"
    with pytest.raises(CheckpointError, match=said):
        located("o/n")


def test_ollama_names_leave_out_what_ollama_does(home: Path) -> None:
    root = home / ".ollama/models"
    for where in ("registry.ollama.ai/library/lm/1b", "registry.ollama.ai/library/lm/latest"):
        manifest(root, where)
    manifest(root, "registry.ollama.ai/somebody/own/latest")
    manifest(root, "hf.co/o/n-GGUF/Q4_K_M")
    blob = root / "blobs" / f"sha256-{DIGEST}"
    given = ("lm:1b", "lm", "LM:latest", "somebody/own", "hf.co/o/n-GGUF:q4_k_m", "ollama:lm:1b")
    assert {located(name) for name in given} == {blob}
    assert "lm:1b" in names() and "somebody/own:latest" in names()


def layer(kind: str, digest: Any = f"sha256:{DIGEST}") -> dict[str, Any]:
    return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "layers None must be a list of objects"),
        ({"layers": [1]}, r"layers \[1\] must be a list"),
        ({"layers": []}, "has 0 layers of type .*model, and not one"),
        ({"layers": [layer("model"), layer("model")]}, "has 2 layers"),
        ({"layers": [layer("model"), layer("adapter")]}, "has a LoRA adapter, which is not impl"),
        ({"layers": [layer("model", "sha256:../../x")]}, "must be sha256: and 64 hexadecimal"),
        ({"layers": [layer("model", None)]}, "digest None must be sha256"),
        ({"layers": [layer("model", "sha256:" + "0" * 64)]}, "0: is not there; pull the model"),
        ([], "model 'lm:1b' of Ollama: "),
    ],
)
def test_a_manifest_that_names_no_file_says_why(value: Any, words: str, home: Path) -> None:
    manifest(home / ".ollama/models", "registry.ollama.ai/library/lm/1b", value)
    with pytest.raises(CheckpointError, match=words):
        located("lm:1b")
    assert names() == ["lm:1b"]


def test_a_damaged_manifest_hides_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "o"))
    manifest(home / "o", "registry.ollama.ai/library/bad/1b").write_bytes(b"{\xff")
    manifest(home / "o", "registry.ollama.ai/library/good/1b")
    assert located("good:1b").name == f"sha256-{DIGEST}"
    with pytest.raises(CheckpointError, match="model 'bad:1b' of Ollama"):
        located("bad:1b")


@pytest.mark.parametrize("root", [".lmstudio/models", ".cache/lm-studio/models"])
def test_lm_studio_keeps_owners_and_repositories(root: str, home: Path) -> None:
    touch(home / root / "o/n-GGUF/n-Q4_K_M.gguf", home / root / "o/n-GGUF/n-Q8_0.gguf")
    touch(home / root / "o/mlx/config.json", home / root / "o/mlx/model.safetensors")
    assert located("o/n-GGUF:Q8_0") == home / root / "o/n-GGUF/n-Q8_0.gguf"
    assert located("lmstudio:o/mlx") == home / root / "o/mlx"


def test_llama_cpp_joins_owner_repository_and_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".cache/llama.cpp"
    touch(folder / "o_n_m-GGUF_n_m-Q4_0.gguf", folder / "lone_file.gguf")
    assert located("o/n_m-GGUF:Q4_0") == folder / "o_n_m-GGUF_n_m-Q4_0.gguf"
    assert located("lone_file") == folder / "lone_file.gguf"
    assert set(names()) == {"o/n_m-GGUF:Q4_0", "lone_file"}
    monkeypatch.setenv("LLAMA_CACHE", str(home / "none"))
    assert names() == []


# --- names ---


def test_splits_are_one_model(home: Path) -> None:
    folder = home / ".lmstudio/models/o/n"
    touch(*(folder / f"n-Q8_0-0000{part}-of-00002.gguf" for part in (1, 2)))
    assert names() == ["o/n:Q8_0"]
    assert located("o/n").name == "n-Q8_0-00001-of-00002.gguf"


def test_a_repository_of_several_files_needs_a_pattern(home: Path) -> None:
    folder = home / ".lmstudio/models/o/n"
    touch(folder / "n-Q8_0.gguf", folder / "n-Q4_0.gguf", folder / "mmproj-F16.gguf")
    with pytest.raises(UsageError, match=r"'o/n' means several: o/n:Q4_0, o/n:Q8_0; type one"):
        located("o/n")
    said = r"no file of o/n .* 'q5_0'; there are o/n:Q4_0, o/n:Q8_0: .* `ptir pull o/n:Q5_0`"
    with pytest.raises(UsageError, match=said):
        located("o/n:Q5_0")


@pytest.mark.parametrize("spec", ["o/n:mmproj-F16", "o/n:F16", "mmproj-F16.gguf"])
def test_a_companion_is_named_as_what_it_is(spec: str, home: Path) -> None:
    folder = home / ".lmstudio/models/o/n"
    touch(folder / "n-Q8_0.gguf", folder / "mmproj-F16.gguf")
    said = f"'{spec}' is a projector of images or sound .mmproj., and no model; give the model"
    with pytest.raises(UsageError, match=said):
        located(spec)
    assert located("o/n").name == "n-Q8_0.gguf"


def test_one_name_in_two_stores_needs_the_store(home: Path) -> None:
    studio = home / ".lmstudio/models/o/n-GGUF/n-Q8_0.gguf"
    cached = snapshot(hub(home), "o/n-GGUF") / "n-Q8_0.gguf"
    touch(studio, cached)
    both = ["hub:o/n-GGUF:Q8_0", "lmstudio:o/n-GGUF:Q8_0"]
    assert names() == both
    for spec in ("o/n-GGUF", "o/n-GGUF:Q8_0", "n-GGUF", "n-Q8_0"):
        with pytest.raises(UsageError, match=f"means several: {', '.join(both)}"):
            located(spec)
    assert [located(spec) for spec in both] == [cached, studio]
    studio.unlink()
    studio.symlink_to(cached)
    assert located("o/n-GGUF").resolve() == cached


def test_a_path_wins_over_a_name(home: Path) -> None:
    touch(home / ".lmstudio/models/o/n/n-Q8_0.gguf", home / "o/n")
    assert located("o/n") == Path("o/n")


def test_files_of_one_quantization_are_told_by_their_names() -> None:
    found = grouped(["a-Q8_0.gguf", "b-Q8_0.gguf", "x/c.gguf", "y/c.gguf", "d-UD-Q4_K_XL.gguf"])
    told = [group.variant for group in found]
    assert told == ["a-Q8_0", "b-Q8_0", "UD-Q4_K_XL", "x/c", "y/c"]


def test_a_pattern_is_a_whole_suffix() -> None:
    files = ["m-IQ4_NL.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "readme.md"]
    assert choose("o/m", files, "q4_k_xl").files == ("m-UD-Q4_K_XL.gguf",)
    assert choose("o/m", [*files, "m-Q4_K_XL.gguf"], "Q4_K_XL").files == ("m-Q4_K_XL.gguf",)
    for pattern in ("4_K_M", "Q4", "K_XL.gguf.gguf", ""):
        with pytest.raises(CheckpointError, match="no GGUF file is called or ends in"):
            choose("o/m", files, pattern)
    with pytest.raises(CheckpointError, match="several files are called or end in 'Q8_0'; there"):
        choose("o/m", ["a-Q8_0.gguf", "b-Q8_0.gguf"], "Q8_0")
    with pytest.raises(CheckpointError, match="there are o/m:IQ4_NL, o/m:Q4_K_M, o/m:UD-Q4_K_XL"):
        choose("o/m", files, "Q8_0")


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("mmproj-model-f16", "projector"),
        ("mtp-n-Q8_0", "several tokens"),
        ("n-LoRA", "adapter"),
        ("n-lora-F16", "adapter"),
        ("n-vocab", "vocabulary"),
        ("n-imatrix", "importance"),
        ("n-Q4_K_M", ""),
        ("vocabulary-lorax", ""),
    ],
)
def test_companions_are_told_by_their_names(stem: str, words: str) -> None:
    assert (words in companion(stem)) if words else not companion(stem)


def test_what_a_hub_id_is() -> None:
    assert split_hub_id("o/n") == HubId("o/n", "")
    assert split_hub_id("o/n:Q4") == HubId("o/n", "Q4")
    others = ("n", "o/n/m", "./o", "/o/n", "o/", "/n", "o/n:", "~/n", ":Q4", "o/a b", "o/n/m.gguf")
    for other in (*others, "o/m.gguf", "o/M.safetensors"):
        assert split_hub_id(other) is None


def test_a_folder_that_cannot_be_read_hides_no_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".cache/llama.cpp"
    folder.mkdir(parents=True)
    touch(home / ".lmstudio/models/o/n/n-Q8_0.gguf")
    listed: Callable[[Path], Iterator[Path]] = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path == folder:
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = found_models()
    assert [one.problem for one in found] == ["", f"{folder}: cannot be read (Permission denied)"]


def test_files_in_the_folders_of_a_folder_are_its_models(home: Path) -> None:
    q4, q8 = home / "each/Q4_0/m-Q4_0.gguf", home / "each/Q8_0/m-Q8_0.gguf"
    touch(q4, home / "each/a-folder.gguf/config.json")
    assert within(home / "each") == q4
    touch(q8)
    with pytest.raises(CheckpointError, match=r"several models: \S*each:Q4_0, \S*each:Q8_0; ty"):
        within(home / "each")
    assert located(f"{home / 'each'}:Q8_0") == q8


def test_a_folder_of_one_file_is_that_file(home: Path) -> None:
    """Companions are no models; a pattern chooses where there are several."""
    one, other = home / "many" / "m-Q4_0.gguf", home / "many" / "m-Q8_0.GGUF"
    touch(one, home / "many" / "mmproj-m.gguf")
    assert located("many") == one.relative_to(home) and within(home / "many") == one
    touch(other)
    with pytest.raises(
        CheckpointError, match=r"holds several models: \S*many:Q4_0, \S*many:Q8_0; ty"
    ):
        located("many")
    assert located("many:q8_0").resolve() == other and located("many:*4*").resolve() == one
    with pytest.raises(CheckpointError, match="no GGUF file is called or ends in 'Q5_0'; there"):
        located("many:Q5_0")
    (home / "many" / "config.json").touch()
    assert located("many") == Path("many")


def test_an_address_of_the_hub_is_a_hub_id() -> None:
    for before in ("hf.co/", "https://huggingface.co/", "http://www.hf.co/"):
        assert split_hub_id(f"{before}o/n:Q4_0") == HubId("o/n", "Q4_0")
    assert split_hub_id("hf.co/o") is None


@pytest.mark.parametrize(
    ("page", "meant"),
    [
        ("o/n/", HubId("o/n", "")),
        ("o/n/tree/main", HubId("o/n", "")),
        ("o/n/tree/main/UD-Q4_K_XL", HubId("o/n", "UD-Q4_K_XL")),
        ("o/n/blob/main/q/n-Q4_0-00001-of-00003.gguf", HubId("o/n", "n-Q4_0")),
        ("o/n/resolve/v1/n-Q8_0.gguf?download=true", HubId("o/n", "n-Q8_0", "v1")),
        ("o/n/blob/refs%2Fpr%2F1/config.json#L3", HubId("o/n", "", "refs/pr/1")),
        ("o/n/n-Q8_0.gguf", HubId("o/n", "n-Q8_0")),
        ("datasets/o/n", None),
        ("o", None),
    ],
)
def test_the_page_of_a_file_or_a_folder_is_a_hub_id(page: str, meant: HubId | None) -> None:
    assert split_hub_id(f"https://huggingface.co/{page}") == meant


def test_an_address_means_what_was_fetched_from_there(home: Path) -> None:
    file = snapshot(hub(home), "o/n") / "n-Q4_0.gguf"
    touch(file)
    for spec in ("hf.co/o/n:q4_0", "https://huggingface.co/o/n/blob/main/n-Q4_0.gguf", "hf.co/o/n"):
        assert located(spec) == file


def test_a_path_that_does_not_exist_is_no_hub_id() -> None:
    with pytest.raises(UsageError, match=r"'models/n-Q4_0.gguf': no such file or folder"):
        located("models/n-Q4_0.gguf")
