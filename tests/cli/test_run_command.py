"""``ptir run``: what it prints, where prompts come from, how it refuses and is interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import ptir
from ptir.checkpoint import save_folder
from ptir.runtime.session import Session
from running import (
    CASES,
    GREEDY,
    REF,
    ROMEO,
    Command,
    Script,
    command,
    llama_folder,
    model,
    script,
    small_checkpoint,
)

pytestmark = pytest.mark.turns(2)

__all__ = ["command", "script"]

TEXT = "We hold these truths: 1776 was 250 years ago, wasn't it? Ça va, 東京!"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["prompt"])
def test_run_gives_the_recorded_tokens(case: dict[str, Any], command: Command) -> None:
    arguments = ("-p", case["prompt"], "--temp", "0", "-n", 64, "--json", "--backend", "ref")
    value = command("run", "demo", *arguments).value
    assert value["token_ids"] == case["greedy_ids"]
    assert value["prompt_ids"] == case["prompt_ids"]
    assert value["text"] == case["greedy_text"]
    assert value["finish_reason"] == "length"


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
    told = {"text", "token_ids", "prompt_ids", "finish_reason", "stats", "formats", "sampling"}
    assert set(value) == told
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
