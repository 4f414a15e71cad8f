"""The commands that take a model: what they print, what they write, and how they refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import tokenizers
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

import ptir
from ptir import events
from ptir.capture.plan import PLANS, plan_for
from ptir.checkpoint import load_archive, open_checkpoint, save_archive, save_folder
from ptir.errors import BackendUnavailable, UsageError
from ptir.ir.jsonform import to_json
from ptir.ops.reading import from_json
from ptir.ops.verify import verify
from ptir.passes import pipeline
from ptir.runtime.session import Session
from ptir.trace import DumpSink, listening_to
from running import (
    CASES,
    REF,
    Command,
    Script,
    assert_close,
    command,
    llama_folder,
    model,
    script,
    small_checkpoint,
)

pytestmark = pytest.mark.turns(2)

__all__ = ["command", "script"]

ROMEO = CASES[0]
GREEDY = ("run", "demo", "ROMEO:", "--temp", "0")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["prompt"])
def test_run_gives_the_recorded_tokens(case: dict[str, Any], command: Command) -> None:
    arguments = ("-p", case["prompt"], "--temp", "0", "-n", 64, "--json", "--backend", "ref")
    value = command("run", "demo", *arguments).value
    assert value["token_ids"] == case["greedy_ids"]
    assert value["prompt_ids"] == case["prompt_ids"]
    assert value["text"] == case["greedy_text"]
    assert value["finish_reason"] == "length"


TEXT = "We hold these truths: 1776 was 250 years ago, wasn't it? Ça va, 東京!"


def llama3_tokenizer() -> str:
    """A small ``tokenizer.json`` in the form of Llama 3's: a pattern, bytes, a template."""
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+|."
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=298,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT] * 4, trainer)
    first = [("<|begin_of_text|>", inner.token_to_id("<|begin_of_text|>"))]
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=first
    )
    return str(inner.to_str())


def test_run_continues_a_text_with_a_llama_folder(tmp_path: Path, command: Command) -> None:
    folder = llama_folder(tmp_path, llama3_tokenizer(), vocab_size=300, eos_token_id=[1, 299])
    value = command("run", folder, TEXT, "-n", 12, "--temp", 0, "--json").value
    inner = tokenizers.Tokenizer.from_str(llama3_tokenizer())
    assert value["prompt_ids"] == inner.encode(TEXT).ids and value["prompt_ids"][0] == 0
    assert len(value["prompt_ids"]) < len(TEXT.encode()) / 2
    known = [index for index in value["token_ids"] if index < inner.get_vocab_size()]
    assert value["text"] == inner.decode(known)
    alone = ptir.load_model(folder, backend=REF).generate(value["prompt_ids"], max_tokens=12)
    assert value["token_ids"] == alone.token_ids and len(alone.token_ids) > 3


def test_json_of_run_has_the_promised_shape(command: Command) -> None:
    value = command(*GREEDY, "-n", 3, "--json").value
    assert set(value) == {"text", "token_ids", "prompt_ids", "finish_reason", "stats", "formats"}
    chosen = {"dtype": "f16", "quant": None, "cache_dtype": "f32", "fast": False}
    assert value["formats"] == chosen  # as the demo is stored
    stats = value["stats"]
    assert {name: type(found) for name, found in stats.items()} == {
        "prompt_tokens": int,
        "prompt_seconds": float,
        "generated_tokens": int,
        "generated_seconds": float,
        "load_seconds": float,
        "first_token_seconds": float,
        "peak_memory_bytes": int,
        "backend": str,
        "device": str,
        "host_fallback_ops": int,
        "cached_tokens": int,
        "proposed_tokens": int,
        "accepted_tokens": int,
    }
    assert (stats["generated_tokens"], stats["host_fallback_ops"]) == (3, 0)


def test_stdout_is_the_text_and_stderr_the_statistics(command: Command) -> None:
    done = command(*GREEDY, "-n", 20)
    assert done.code == 0
    assert done.out == model().generate("ROMEO:", max_tokens=20).text + "\n"
    assert "2 prompt tokens" in done.err
    assert "20 tokens" in done.err
    assert "on ref (numpy); 0 ops ran elsewhere; length" in done.err


def test_token_ids_are_a_prompt_too(command: Command) -> None:
    ids = command("run", "demo", "-p", "ROMEO:", "-n", 1, "--json", "--temp", 0).value["prompt_ids"]
    assert len(ids) == 2
    listed = ",".join(map(str, ids))
    done = command("run", "demo", "--tokens", listed, "-n", 20, "--temp", 0)
    assert done.out == model().generate("ROMEO:", max_tokens=20).text + "\n"


def test_a_model_without_a_tokenizer_takes_and_prints_ids(tmp_path: Path, command: Command) -> None:
    folder = str(save_folder(small_checkpoint(), tmp_path / "m"))
    done = command("run", folder, "--tokens", "5,7", "-n", 3, "--temp", 0, "--ignore-eos")
    expected = ptir.load_model(folder, backend=REF).generate([5, 7], max_tokens=3, ignore_eos=True)
    assert done.out == ",".join(map(str, expected.token_ids)) + "\n"
    refused = command("run", folder, "-p", "text")
    assert (refused.code, "give token ids (--tokens)" in refused.err) == (2, True)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_random_models_take_a_text_and_say_that_theirs_is_noise(
    name: str, command: Command
) -> None:
    done = command("run", f"random:{name}", "-p", "ROMEO:", "-n", 4, "--temp", 0, "--ignore-eos")
    assert done.code == 0 and len(done.out) > 1
    assert f"random:{name} has random weights: what it says is noise\n" in done.err
    assert "noise" not in command(*GREEDY, "-n", 1).err


def test_terminal_sees_the_prompt_before_the_text(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert command(*GREEDY, "-n", 5).out.startswith("ROMEO:\nI have")


def test_prompt_from_stdin_as_option_and_as_argument_are_one(command: Command) -> None:
    rest = ("--temp", 0, "-n", 4, "--json")
    given = [
        command("run", "demo", "é 😀", *rest),
        command("run", "demo", "-p", "é 😀", *rest),
        command("run", "demo", "-p", "-", *rest, stdin="é 😀".encode()),
        command("generate", "demo", "é 😀", *rest),
    ]
    assert len({tuple(done.value["token_ids"]) for done in given}) == 1
    assert given[0].value["prompt_ids"] == model().encode("é 😀")


def test_options_reach_the_sampler(command: Command) -> None:
    options = {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    sampled = ("run", "demo", "ROMEO:", "--temp", 1.2, *flags, "--seed", 9, "-n", 12, "--json")
    expected = model().generate("ROMEO:", max_tokens=12, temperature=1.2, seed=9, **options)
    assert command(*sampled).value["token_ids"] == expected.token_ids
    stopped = command(*GREEDY, "--stop", "moon", "--stop", "zz", "--json").value
    assert (stopped["text"], stopped["finish_reason"]) == ("\nI have a ", "stop")
    scored = command(*GREEDY, "-n", 2, "--logprobs", 3, "--json").value["logprobs"]
    assert [len(entry["top"]) for entry in scored] == [3, 3]


def test_without_a_seed_texts_differ(command: Command) -> None:
    arguments = ("run", "demo", "ROMEO:", "--temp", 1.5, "-n", 16, "--json")
    texts = {command(*arguments).value["text"] for _ in range(3)}
    assert len(texts) > 1


@pytest.mark.parametrize("as_json", [True, False])
def test_interruption_prints_what_came_and_exits_with_130(
    as_json: bool, script: Script, command: Command
) -> None:
    spoken = model().encode("Hear 😀")
    script(spoken, interrupt_at=len(spoken) - 1)
    done = command(*GREEDY, "--stop", "zz", *(["--json"] if as_json else []))
    assert done.code == 130
    assert done.err.splitlines()[-1] == "interrupted"
    if as_json:
        value = json.loads(done.out)
        assert (value["finish_reason"], value["token_ids"]) == ("interrupted", spoken[:-1])
        assert value["text"] == "Hear \ufffd"
    else:
        assert done.out == "Hear \ufffd\n"


def test_interruption_of_the_prompt_leaves_an_empty_text(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "prefill", interrupted)
    done = command(*GREEDY, "--json")
    assert done.code == 130
    assert json.loads(done.out)["token_ids"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "demo"), 2, "give the prompt once"),
        (("run", "demo", "A", "-p", "A"), 2, "give the prompt once"),
        (("run", "demo", ""), 2, "the prompt is empty"),
        (("run", "demo", "A", "-n", "-1"), 2, "-1 is not in the range"),
        (("run", "demo", "A", "-n", "300"), 2, "do not fit the context of 256"),
        (("run", "demo", "A", "--temp", "-1"), 2, "temperature -1.0: must be a number >= 0"),
        (("run", "demo", "A", "--dtype", "f64"), 2, "'f64' is not one of"),
        (("run", "nosuch", "A"), 2, "no such file or folder"),
        (("run", "random:nosuch", "A"), 2, "unknown random model 'nosuch'"),
        (("run", "demo", "A", "--override", "nosuch=force=x"), 2, "unknown functional 'nosuch'"),
        (("run", "demo", "A", "--override", "nosuch=force=x"), 2, "layer_norm"),
        (
            ("run", "demo", "A", "--override", "softmax=force=nosuch"),
            2,
            "unknown implementation of softmax 'nosuch'; known: backend, online",
        ),
        (("run", "demo", "A", "--backend", "nosuch"), 3, "unknown backend 'nosuch'; known: ref"),
        (("forward", "demo", "--tokens", "1,x"), 2, "integers separated by commas"),
        (("forward", "demo", "--tokens", "1024"), 2, "token id 1024"),
        (("forward", "demo", "A", "--tokens", "1"), 2, "give the prompt once"),
        (("run", "demo", "-p", "A", "--tokens", "1"), 2, "give the prompt once"),
        (("run", "demo", "--tokens", "1,,2"), 2, "integers separated by commas"),
        (("run", "demo", "--tokens", "1024"), 2, "token id 1024"),
        (("bench", "demo", "-p", "257"), 2, "do not fit the context of 256"),
        (("dump", "demo", "--out", "no/such/folder/x.ptir"), 2, "No such file or directory"),
        (("pull", "justaname"), 2, "is not a hub id; write OWNER/NAME or OWNER/NAME:Q4_K_M"),
    ],
)
def test_refusals_say_why(
    arguments: tuple[str, ...], code: int, words: str, command: Command
) -> None:
    done = command(*arguments)
    assert done.code == code
    assert words in " ".join(done.err.split())
    assert done.out == ""


def test_stdin_that_is_no_text_is_refused(command: Command) -> None:
    done = command("run", "demo", "-p", "-", stdin=b"\xff\xfe")
    assert (done.code, "not UTF-8" in done.err) == (2, True)


def test_model_that_does_not_fit_its_config_exits_with_1(command: Command, tmp_path: Path) -> None:
    folder = save_folder(small_checkpoint(), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    done = command("run", folder, "A")
    assert done.code == 1
    assert "config.json says n_layer 3, and tensors of 2 layers are stored" in done.err


def test_forced_implementation_gives_the_same_tokens(command: Command) -> None:
    arguments = (*GREEDY, "-n", 64, "--json", "--stats")
    done = command(*arguments, "--override", "softmax=force=online")
    assert done.value["token_ids"] == ROMEO["greedy_ids"]
    done = command(*arguments, "--override", "attention=force=online")
    assert done.value["token_ids"] == ROMEO["greedy_ids"]
    assert "attention implementation" in done.err
    assert "online" in done.err


def test_dumped_programs_load_again(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    PLANS.clear()
    assert command(*GREEDY, "-n", 2, "--dump-dir", folder, "--dump-mode", "compile").code == 0
    found = sorted(folder.glob("*/*.ptir"))
    assert {path.stem for path in found} == {"program", "optimized"}
    assert [path.name for path in sorted(folder.glob("0*"))][:1] == ["00000_extend"]
    assert len(found) >= 6
    places: set[tuple[str, str]] = set()
    for path in found:
        program = ptir.parse(path.read_text(encoding="utf-8"))
        verify(program)
        text = path.read_text(encoding="utf-8").removesuffix("\n")
        assert str(program) == re.sub(r" loc\(.*\)$", "", text, flags=re.MULTILINE)
        places |= {(i.location.scope, i.location.functional) for i in program.main.instructions}
    assert ("h.3.mlp.c_fc", "linear") in places


def test_a_dumped_step_runs_alone_on_what_its_first_run_read(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "dumps"
    PLANS.clear()
    files = tmp_path / "whole", tmp_path / "alone"
    dumping = "--dump-dir", folder, "--dump-inputs"
    assert command("forward", "demo", "ROMEO:", "--out", files[0], *dumping).code == 0
    (step,) = folder.glob("0*_all_logits")
    assert command("forward", step, "--out", files[1]).code == 0
    whole, alone = (next(iter(load_archive(file).arrays.values())) for file in files)
    # Weights are inputs there, so that nothing is computed of them ahead: sums differ in order.
    assert_close(alone.reshape(-1, whole.shape[-1])[: len(whole)], whole)
    stored = {path.name for path in (folder / "parameters").iterdir()}
    assert len(stored) == 76  # those of the model, each once

    meta = json.loads((step / "meta.json").read_text())
    (step / "meta.json").write_text(json.dumps(meta | {"kind": "ptir dump 9"}))
    done = command("forward", step)
    assert (done.code, done.out) == (1, "")
    assert "is of 'ptir dump 9' and this ptir reads and writes 'ptir dump 1'" in done.err
    done = command("forward", folder)
    assert "name one of its programs: 00000_" in done.err


def test_a_profile_prints_layers_functionals_and_kernels_and_writes_a_timeline(
    command: Command, tmp_path: Path
) -> None:
    PLANS.clear()
    out = tmp_path / "timeline.json"
    done = command(*GREEDY, "-n", 3, "--profile", "--profile-out", out, "--backend", "ref")
    tables = done.err.split("\n\n")
    titles = [table.splitlines()[0].split("  ")[0] for table in tables]
    assert titles[:4] == ["by layer", "by functional", "by kernel", "program"]
    rows = [table.splitlines()[1:] for table in tables]
    assert {"h.0", "h.5"} <= {row.split()[0] for row in rows[0]}
    assert any(re.match(r"linear \(\w+\) +\d+ +\d.* +\d+%$", row) for row in rows[1])
    assert any(row.startswith("_advance  2 ") for row in rows[3])
    assert "cache plans" in done.err
    assert "roofs, measured: memory " in done.err
    names = {one["name"] for one in json.loads(out.read_text())["traceEvents"]}
    assert {"run _advance", "compile _extend", "attention", "load wte.weight"} <= names


def test_forward_of_a_dump_without_arrays_says_how_to_keep_them(
    command: Command, tmp_path: Path
) -> None:
    PLANS.clear()
    assert command("forward", dumped(tmp_path, ".ptir"), "--dump-dir", tmp_path / "d").code == 2
    sink = DumpSink(tmp_path / "dumps")
    program = ptir.capture(lambda x: x + 1.0, ptir.spec("f32", 2))
    with listening_to([sink]):
        ptir.run_program(program, {"x": np.ones(2, np.float32)}, REF)
    done = command("forward", tmp_path / "dumps" / "00000_program")
    assert (done.code, done.out) == (2, "")
    assert "keeps no arrays: dump again with --dump-inputs, or give them with --input" in done.err
    done = command("forward", "demo", "A", "--dump-inputs")
    assert (done.code, "give --dump-dir, which says where" in done.err) == (2, True)


def test_forward_describes_and_writes_logits(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "logits.safetensors"
    value = command("forward", "demo", "ROMEO:", "--json", "--out", out).value
    logits = value["outputs"]["logits"]
    assert (value["token_ids"], logits["shape"], logits["dtype"]) == (
        ROMEO["prompt_ids"],
        [2, 1024],
        "float32",
    )
    archive = load_archive(out)
    assert np.array_equal(archive.arrays["logits"], model(dtype="auto").forward("ROMEO:"))
    assert archive.metadata["token_ids"] == "859,26"
    by_ids = command("forward", "demo", "--tokens", "859,26", "--json").value
    assert by_ids["outputs"]["logits"]["digest"] == logits["digest"]
    other = command("forward", "demo", "--tokens", "859,27", "--json").value
    assert other["outputs"]["logits"]["digest"] != logits["digest"]
    assert logits["digest"] in command("forward", "demo", "ROMEO:").out


def test_inspect_describes_a_checkpoint_without_reading_it(command: Command) -> None:
    value = command("inspect", "demo", "--json").value
    assert (value["model_type"], value["dtypes"], value["tokenizer"]) == ("gpt2", ["f16"], True)
    assert value["parameters"] == sum(np.prod(row["shape"]) for row in value["tensor_list"])
    assert value["bytes"] == 2 * value["parameters"]
    assert value["config"]["n_layer"] == 6
    listed = command("inspect", "random:gpt2-xl", "--tensors")
    assert "h.47.mlp.c_proj.weight" in listed.out
    assert "1557611200" in listed.out


@pytest.mark.parametrize("optimized", [False, True])
def test_dump_of_a_step_parses_verifies_and_reloads(optimized: bool, command: Command) -> None:
    arguments = ("dump", "demo", "--length", 2, *(["--optimized"] if optimized else []))
    text = command(*arguments)
    assert (text.code, text.err) == (0, "")
    program = ptir.parse(text.out)
    verify(program)
    assert str(program) + "\n" == text.out
    assert from_json(command(*arguments, "--json").value) == program
    for form in ((), ("--json",)):
        found = command(*arguments, "--locations", *form)
        again = from_json(found.value) if form else ptir.parse(found.out)
        assert again == program
        places = {(i.location.scope, i.location.functional) for i in again.main.instructions}
        assert ("h.3.mlp.c_fc", "linear") in places
    assert " loc(" not in text.out


def test_dumped_step_computes_the_logits(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "step.ptir"
    assert command("dump", "demo", "--length", 3, "--out", out).out == ""
    program = ptir.parse(out.read_text(encoding="utf-8"))
    source = model().store.source
    ports = zip(program.ports, program.inputs, strict=True)
    types = {port.name: type_ for port, type_ in ports}
    assert types["wte.weight"].dtype.name == "f16"  # as the demo is stored
    inputs: dict[str, Any] = {
        name: source.read(name).astype(types[name].dtype.numpy) for name in source.names()
    }
    inputs |= {
        port.name: np.zeros(type_.shape, np.float32)
        for port, type_ in zip(program.ports, program.inputs, strict=True)
        if port.name.startswith(("keys", "values"))
    }
    inputs |= {
        "tokens": np.array([[859, 26, 0]], np.int32),
        "start": np.array([0], np.int32),
        "count": np.array([2], np.int32),
    }
    logits = ptir.run_program(program, inputs, REF)[0]
    assert_close(logits, model().forward("ROMEO:")[-1:])
    with pytest.raises(UsageError, match="no array for port 'count'"):
        ptir.run_program(program, {n: v for n, v in inputs.items() if n != "count"}, REF)


def dumped(tmp_path: Path, suffix: str) -> Path:
    """A program as a file, whose second output tells operands and axes apart."""
    program = ptir.capture(
        lambda x, w: (x @ w, x - 1.0), ptir.spec("f32", 2, 3), ptir.spec("f32", 3, 4)
    )
    path = tmp_path / f"program{suffix}"
    json_text = json.dumps(to_json(program))
    path.write_text(json_text if suffix == ".json" else f"{program}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".ptir", ".json"])
def test_forward_runs_a_dumped_program(suffix: str, command: Command, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second, out = (tmp_path / name for name in ("first", "second", "out"))
    save_archive(first, {"x": x * 0, "w": w, "unused": w})
    save_archive(second, {"x": x})
    program = dumped(tmp_path, suffix)
    arguments = ("forward", program, "--input", first, "--input", second)
    outputs = command(*arguments, "--out", out, "--json").value["outputs"]
    assert {name: row["shape"] for name, row in outputs.items()} == {
        "output0": [2, 4],
        "output1": [2, 3],
    }
    arrays = load_archive(out).arrays
    assert np.array_equal(arrays["output0"], x @ w)
    assert np.array_equal(arrays["output1"], x - 1)
    assert outputs["output1"]["digest"] in command(*arguments).out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["PROGRAM"],
            2,
            "no array for port 'x' (f32[2,3]); the program takes x, w, given: nothing",
        ),
        (["PROGRAM", "text"], 2, "a program takes no text; give its arrays with --input"),
        (["PROGRAM", "--tokens", "1"], 2, "a program takes no text"),
        (["demo", "text", "--input", "x"], 2, "--input is for programs (.ptir)"),
        (["PROGRAM", "--input", "nowhere"], 1, "nowhere: cannot be read: No such file"),
        (["missing.ptir"], 1, "missing.ptir: cannot be read: No such file"),
        (["missing.json"], 1, "missing.json: cannot be read: No such file"),
        (["BROKEN"], 5, "error [PTIR-103]"),
        (["ILL"], 5, "contracting dims differ: 3 vs 5"),
    ],
)
def test_forward_of_a_program_says_what_is_wrong(
    arguments: list[str], code: int, words: str, command: Command, tmp_path: Path
) -> None:
    program = dumped(tmp_path, ".ptir")
    text = program.read_text(encoding="utf-8")
    broken, ill = tmp_path / "broken.ptir", tmp_path / "ill.ptir"
    broken.write_text(text[:-20], encoding="utf-8")
    ill.write_text(text.replace("f32[3,4]", "f32[5,4]"), encoding="utf-8")
    files = {"PROGRAM": program, "BROKEN": broken, "ILL": ill}
    done = command("forward", *(files.get(a, a) for a in arguments))
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_a_program_runs_where_its_name_says(command: Command) -> None:
    program = ptir.capture(lambda x: x + 1.0, ptir.spec("f32", 2))
    for backend in ("ref", "ref:0", REF, None):
        (found,) = ptir.run_program(program, {"x": [1.0, 2.0]}, backend)
        assert found.tolist() == [2, 3]
    assert ptir.run_program(program, {"x": ptir.tensor([1.0, 2.0])})[0].tolist() == [2, 3]
    with pytest.raises(BackendUnavailable, match=r"unknown backend 'reff' .nearest: ref"):
        ptir.run_program(program, {"x": [1.0, 2.0]}, "reff")
    with pytest.raises(UsageError, match=r"port 'x' takes f32\[2\], given i32\[2\]"):
        ptir.run_program(program, {"x": [1, 2]}, "ref")


def test_every_pass_over_the_demo_is_verified_when_asked(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    check = pipeline.verify
    monkeypatch.setattr(pipeline, "verify", lambda p: (seen.append(p.digest), check(p))[1])
    PLANS.clear()
    assert command(*GREEDY, "-n", 4, "--json").value["token_ids"] == ROMEO["greedy_ids"][:4]
    assert not seen
    PLANS.clear()
    monkeypatch.setenv("PTIR_VERIFY", "1")
    for policy in ([], ["--override", "attention=force=online"]):
        assert command(*GREEDY, "-n", 4, *policy, "--json").value["text"]
    sampled = ("--temp", "0.8", "--top-k", 5, "--repetition-penalty", 1.2, "--json")
    assert command("run", "demo", "ROMEO:", "-n", 3, *sampled).value["token_ids"]
    assert len(seen) >= 6 * sum(stage.run is not None for stage in pipeline.PIPELINE)
    broken = replace(pipeline.PIPELINE[0], run=lambda p, c: replace(p, version=(9, 0)))
    monkeypatch.setattr(pipeline.optimize, "__defaults__", ((broken,),))
    PLANS.clear()
    done = command(*GREEDY, "-n", 1)
    assert done.code == 5 and "pass 'canonicalize' broke the program" in done.err
    PLANS.clear()


def test_speculation_leaves_the_text_as_it_is(command: Command) -> None:
    plain = command(*GREEDY, "-n", 24)
    found = command(*GREEDY, "-n", 24, "--speculate", "lookup")
    assert found.out == plain.out
    drafted = command(*GREEDY, "-n", 24, "--draft", "demo")
    assert drafted.out == plain.out
    both = command(*GREEDY, "--draft", "demo", "--speculate", "lookup")
    assert both.code == 2 and "--speculate or --draft, not both" in both.err
    options = ("-p", 0, "-n", 2, "-r", 1, "--json", "--speculate", "lookup")
    rows = command("bench", "demo", *options).value["rows"]
    assert [row["test"] for row in rows] == ["tg2", "tg2+lookup"]


def test_bench_reports_speeds_in_the_promised_shape(command: Command) -> None:
    options = ("--dtype", "f32")  # the reference would widen what the demo stores
    value = command("bench", "demo", "-p", 8, "-n", 2, "-r", 1, "--json", *options).value
    formats = {"dtype", "quant", "cache_dtype", "fast"}
    estimate = "estimated_tokens_per_second"
    assert set(value) == {"model", "backend", "device", "probe", estimate, "rows"} | formats
    assert (value["model"], value["backend"], value["dtype"], value["quant"]) == (
        "demo",
        "ref",
        "f32",
        None,
    )
    assert [row["test"] for row in value["rows"]] == ["pp8", "tg2"]
    for row in value["rows"]:
        assert set(row) == {
            "test",
            "tokens_per_second",
            "bandwidth_share",
            "weight_bytes_per_token",
            "peak_memory_bytes",
        }
        speed = row["tokens_per_second"]
        assert speed["samples"] == [speed["median"]] == [speed["min"]] == [speed["max"]]
        assert speed["median"] > 0
    prompt, decoding = value["rows"]
    assert prompt["bandwidth_share"] is None
    assert decoding["bandwidth_share"] > 0
    stored = ptir.load_model("demo", backend=REF, dtype="f32").store
    positions = stored.type("wpe.weight").nbytes
    everything = sum(stored.type(name).nbytes for name in stored.source.names())
    read = decoding["weight_bytes_per_token"]
    assert everything - positions < read <= everything - positions + 2 * 4 * 192
    assert "threads reading" in value["probe"]["kind"]
    assert value["probe"]["bytes_per_second"] > 0
    table = command("bench", "random:gpt2-tiny", "-p", 8, "-n", 0, "-r", 2).out
    assert "pp8" in table
    assert "bandwidth:" not in table
    assert "tg" not in table


@pytest.mark.parametrize("name", ["folder", "one.safetensors"])
def test_converted_model_gives_the_same_tokens(name: str, command: Command, tmp_path: Path) -> None:
    out = tmp_path / name
    assert command("convert", "demo", out, "--json").value == {"path": str(out), "tensors": 76}
    value = command("run", out, "ROMEO:", "--temp", 0, "-n", 64, "--json").value
    assert value["token_ids"] == ROMEO["greedy_ids"]
    again = command("convert", "demo", out)
    assert (again.code, again.out) == (1, "")
    assert "exists" in again.err
    assert command("convert", "demo", out, "--overwrite", "--dtype", "bf16").code == 0
    assert str(open_checkpoint(out).source.type("transformer.wte.weight").dtype) == "bf16"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_storage_runs(dtype: str, command: Command) -> None:
    value = command(*GREEDY, "-n", 8, "--dtype", dtype, "--json").value
    if dtype == "f16":  # the demo is stored as f16, so nothing is rounded
        assert value["token_ids"] == ROMEO["greedy_ids"][:8]
    assert len(value["token_ids"]) == 8


def test_pull_prints_where_the_model_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(hub_id: str, **options: Any) -> str:
        asked.update(options, hub_id=hub_id)
        return "/cache/snapshot"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert command("pull", "owner/name", "--revision", "v1").out == "/cache/snapshot\n"
    assert (asked["hub_id"], asked["revision"]) == ("owner/name", "v1")
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in asked["allow_patterns"])
    expected = {"model": "owner/name", "path": "/cache/snapshot"}
    assert command("pull", "owner/name", "--json").value == expected


def test_pull_of_a_pattern_fetches_that_file_alone(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(hub_id: str, **options: Any) -> str:
        asked.append((hub_id, options["allow_patterns"], options["revision"]))
        return "/cache/snapshot"

    names = ["n-Q8_0.gguf", *(f"q/[n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)), "config.json"]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda *_, **__: names)
    found = command("pull", "o/n:q4_0", "--revision", "v1")
    assert found.out == "/cache/snapshot/q/[n]-Q4_0-00001-of-00002.gguf\n"
    parts = [f"q/[[]n]-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert asked == [("o/n", parts, "v1")]
    refused = command("pull", "o/n:Q5_0")
    assert (refused.code, len(asked)) == (1, 1)
    assert "no GGUF file is called or ends in 'Q5_0'; there are o/n:Q8_0, o/n:Q4_0" in refused.err


@pytest.mark.parametrize(
    "error", [LocalEntryNotFoundError("no route\nmore"), OfflineModeIsEnabled("no route\nmore")]
)
def test_pull_without_a_network_is_one_clear_error(
    error: Exception, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    done = command("pull", "owner/name")
    assert (done.code, done.out) == (1, "")
    said = "'owner/name' could not be fetched: no route; check the name and the network"
    assert done.err.splitlines() == [f"error [PTIR-301]: {said}"]


def test_fast_says_where_there_is_nothing_to_gain(command: Command) -> None:
    found = command("forward", "demo", "--tokens", "1,2,3", "--fast")
    assert found.code and "weights in f16 have no dot implementation" in found.err
    found = command("forward", "demo", "--tokens", "1,2,3", "--quant", "int8", "--fast")
    assert found.code and "gains nothing from quantized_linear=int8" in found.err


def test_bench_writes_its_numbers_as_a_page_too(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "bench.html"
    given = ("bench", "demo", "-p", 4, "-n", 2, "-r", 2, "--backend", "ref", "--json")
    rows = command(*given, "--html", out).value["rows"]
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    drawn, told = (section["data"]["rows"] for section in json.loads(held[1])["sections"])
    wanted = {row["test"]: row["tokens_per_second"]["median"] for row in rows}
    assert {one["name"]: one["value"] for one in drawn} == wanted
    assert [row[:2] for row in told] == [[n, round(v, 2)] for n, v in wanted.items()]


def test_report_writes_a_page_of_a_step(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    given = ("report", "demo", "--position", 8, "-r", 1, "--backend", "ref", "--out", out)
    value = command(*given, "--json").value
    assert value["title"] == "demo: a decode step at position 8"
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    graph = json.loads(held[1])["sections"][0]["data"]
    assert {part["layer"] for part in graph["parts"]} >= {f"h.{n}" for n in range(6)}
    assert sum("attention" in part["computes"] for part in graph["parts"]) == 6
    done = command(*given, "--device-memory", "40MB")
    assert done.code == 4
    assert "its weights are streamed (--device-memory)" in done.err
    done = command(*given[:-1], tmp_path / "no" / "x.html")
    assert (done.code, "choose another file" in done.err) == (2, True)


def test_report_of_a_dump_runs_its_longest_program_and_tells_its_past(
    command: Command, tmp_path: Path
) -> None:
    folder, out = tmp_path / "dumps", tmp_path / "report.html"
    sink = DumpSink(folder)
    with listening_to([sink]):
        for name, size in (("small", 2), ("large", 4)):
            program = ptir.capture(lambda x: x + 1.5, ptir.spec("f32", size))
            plan = plan_for(program, REF, name=name)
            events.emit(events.ProgramStarting(size, plan, "ref", "numpy", dict))
            events.emit(events.ProgramRun(plan.optimized, "ref", "numpy", size, (), size, plan))
    said = command("report", folder, "-r", 1, "--out", out, "--json").value
    assert said["title"].startswith("00001_large of dumps")
    assert said["facts"]["ran again on"] == "sample arrays, since --dump-inputs kept none"
    held = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert held is not None
    tables = {s["title"]: s["data"] for s in json.loads(held[1])["sections"]}
    assert [row[2:] for row in tables["Runs"]["rows"]] == [["end", 4000.0]]
    assert len(tables["Passes"]["rows"]) > 5
    empty = tmp_path / "empty"
    DumpSink(empty)
    done = command("report", empty, "--out", out)
    assert (done.code, "no program ran in this dump" in done.err) == (1, True)


def test_bench_takes_and_reports_every_format(command: Command) -> None:
    options = ("--dtype", "bf16", "--cache-dtype", "f16")
    found = command("bench", "demo", "-p", "4", "-n", "2", "-r", "1", "--json", *options)
    report = json.loads(found.out)
    assert (report["dtype"], report["quant"], report["cache_dtype"]) == ("bf16", None, "f16")
    assert report["fast"] is False
