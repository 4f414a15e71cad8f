"""``ptir run``: continue a prompt. stdout carries the text (or one JSON value), stderr the rest."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.images import SHOWN, Images, image_options, show_images
from ptir.cli.model import (
    Formats,
    format_options,
    given_input,
    input_options,
    model_argument,
    open_model,
    speculation,
    speculation_options,
    streamed_record,
    streaming,
)
from ptir.cli.progress import progress
from ptir.cli.sampling import chosen_sampling, sampling_options
from ptir.errors import UsageError

if TYPE_CHECKING:
    from ptir.runtime import Generation, Model
    from ptir.runtime.chat import ChatPrompt
    from ptir.runtime.generate import GenerationRun


@click.command()
@model_argument
@input_options
@sampling_options
@click.option("--logprobs", type=click.IntRange(0, 100), help="Record the N best (with --json).")
@click.option("--raw", is_flag=True, help="Leave the model's chat template out.")
@click.option("--system", metavar="TEXT", help="A system message, for models that have a template.")
@click.option("--ignore-eos", is_flag=True, help="Do not end at the end-of-text token.")
@speculation_options
@image_options
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    prompt: str | None,
    prompt_option: str | None,
    tokens: str | None,
    formats: Formats,
    max_tokens: int | None,
    stop: tuple[str, ...],
    logprobs: int | None,
    raw: bool,
    system: str | None,
    speculate: str | None,
    draft: str | None,
    images: Images,
    ignore_eos: bool,
    **given_sampling: Any,
) -> None:
    """Continue PROMPT with MODEL: `demo`, a folder, a file, random:NAME or a hub id.

    stdout carries the continuation alone; a terminal also shows the prompt before it. A model that
    has a chat template answers the prompt instead, as the message of a user. A model without a
    tokenizer takes --tokens and prints ids. With --image, MODEL says what it sees.
    """
    if images.given:
        if [prompt, prompt_option, tokens] != [None] * 3:
            raise click.UsageError("give a prompt or --image, not both")
        show_images(common, model, formats, images, given_sampling["top_k"] or SHOWN)
        return
    given = given_input(prompt, prompt_option, tokens)
    out = sys.stdout
    with session(common):
        loaded = open_model(common, model, formats)
        _note_noise(loaded)
        sampling = chosen_sampling(loaded, given_sampling, common.seed)
        asked = _asked(loaded, given, system, raw)
        proposed_by = speculation(common, formats, speculate, draft)
        streamed = streaming(loaded)
        with progress("prompt", streamed) as report:
            run = loaded.run(
                [given if asked is None else asked.token_ids],
                max_tokens=max_tokens,
                stop=stop,
                logprobs=logprobs,
                ignore_eos=ignore_eos,
                progress=report,
                ends=() if asked is None else asked.ends,
                speculate=proposed_by,
                **sampling,
            )
            shown = None if common.json else out
            echo = given if isinstance(given, str) and asked is None and out.isatty() else ""
            finished = _stream(run, shown, echo=echo, as_ids=loaded.tokenizer is None)
    result = run.results[0]
    if common.json:
        told = {"sampling": sampling, "formats": formats.chosen(loaded)}
        show.value({**record(result), **told, **streamed_record(loaded)})
    else:
        _summary(result)
        if streamed is not None:
            show.note(streamed())
    if not finished:
        raise KeyboardInterrupt


def _asked(
    loaded: Model, given: str | list[int], system: str | None, raw: bool
) -> ChatPrompt | None:
    """The prompt as the model's chat template writes it; None where there is none to apply."""
    if raw or not isinstance(given, str) or not loaded.text.has_template:
        if system is not None:
            raise UsageError(
                "--system: a model's chat template writes it, and none is applied here (it takes a"
                " model with a template, a prompt that is text, and no --raw)"
            )
        return None
    from ptir.runtime.chat import chat_prompt

    front = [] if system is None else [{"role": "system", "content": system}]
    asked = chat_prompt(loaded, [*front, {"role": "user", "content": given}])
    show.note("the prompt is a message in the model's chat template; --raw leaves that out")
    return asked


def _note_noise(loaded: Model) -> None:
    """Say that nobody should wonder about the text of random weights."""
    from ptir.runtime.specs import RANDOM

    if not loaded.name.startswith(RANDOM):
        return
    note = f"{loaded.name} has random weights: what it says is noise"
    size = int(loaded.checkpoint.config["vocab_size"])
    if loaded.tokenizer and loaded.tokenizer.vocab_size < size:
        note += f"; ids from {loaded.tokenizer.vocab_size} to {size - 1} have no text"
    show.note(note)


def _stream(run: GenerationRun, out: TextIO | None, *, echo: str, as_ids: bool) -> bool:
    """Print pieces to ``out`` as they come, after ``echo``; False when Ctrl-C ended the run.

    What came until then is kept, and printed to the last character. ``as_ids`` prints the tokens
    themselves, separated by commas, as ``--tokens`` takes them.
    """
    shown: list[str] = []
    try:
        if out is not None:
            click.echo(echo, out, nl=False)
        for piece in run:
            shown.append(piece.text)
            if out is not None:
                token = f"{',' * (len(shown) > 1)}{piece.token_id}"
                click.echo(token if as_ids else piece.text, out, nl=False)
    except KeyboardInterrupt:
        return False
    finally:
        if out is not None:
            click.echo(run.results[0].text[len("".join(shown)) :], out)
    return True


def record(result: Generation) -> dict[str, Any]:
    """A generation as ``--json`` prints it."""
    fields = ("text", "token_ids", "prompt_ids", "finish_reason")
    found: dict[str, Any] = {name: getattr(result, name) for name in fields}
    found["stats"] = asdict(result.stats)
    if result.logprobs is not None:
        found["logprobs"] = result.logprobs
    return found


def _summary(result: Generation) -> None:
    stats = result.stats
    decoded = max(stats.generated_tokens - 1, 0)  # the first token comes with the prompt
    right = f"; {stats.accepted_tokens} of {stats.proposed_tokens} proposed tokens were right"
    speed = f" ({decoded / max(stats.generated_seconds, 1e-9):.1f} tok/s)" if decoded else ""
    show.note(
        f"{_tokens(stats.prompt_tokens, 'prompt token')} in {stats.prompt_seconds:.2f} s,"
        f" {_tokens(stats.generated_tokens, 'token')} in {stats.generated_seconds:.2f} s{speed}"
        f" on {stats.backend} ({stats.device}); {stats.host_fallback_ops} ops ran elsewhere;"
        f" {result.finish_reason}{right if stats.proposed_tokens else ''}"
    )


def _tokens(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
