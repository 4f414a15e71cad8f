"""``ptir chat``: talk with a model. stdout carries its answers, stderr the rest."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    model_argument,
    open_model,
    speculation,
    speculation_options,
)
from ptir.cli.sampling import chosen_sampling, sampling_options
from ptir.errors import UsageError


@click.command()
@model_argument
@click.option("--system", metavar="TEXT", help="The system message: what the model should be.")
@click.option(
    "-c",
    "--context",
    type=click.IntRange(1),
    help="Tokens of the whole talk; default: 4096, or the model's if those are fewer.",
)
@click.option("--chat-template", metavar="NAME", help="One of several that the model has.")
@click.option(
    "--chat-template-kwargs",
    metavar="JSON",
    help='What the template takes besides, such as {"enable_thinking": false}.',
)
@sampling_options
@speculation_options
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    system: str | None,
    context: int | None,
    chat_template: str | None,
    chat_template_kwargs: str | None,
    formats: Formats,
    max_tokens: int | None,
    stop: tuple[str, ...],
    speculate: str | None,
    draft: str | None,
    **sampling: Any,
) -> None:
    """Talk with MODEL, one that has a chat template; /help lists what can be said besides.

    A line of stdin is a message: one that ends with a backslash goes on in the next, and so does
    what stands between lines of three double quotes. Ctrl-C stops an answer, Ctrl-D ends the talk.
    """
    kwargs = _object(chat_template_kwargs)
    out = sys.stdout
    with session(common):
        from ptir.cli.chat_answers import shown_on
        from ptir.cli.chat_messages import Messages
        from ptir.cli.chat_talk import Talk
        from ptir.runtime import Conversation

        loaded = open_model(common, model, formats)
        conversation = Conversation(
            loaded,
            system=system,
            context=context,
            template=chat_template,
            template_options=kwargs,
            max_tokens=max_tokens,
            stop=stop,
            speculate=speculation(common, formats, speculate, draft),
            **chosen_sampling(loaded, sampling, common.seed),
        )
        loaded.text.templates.renderer.start()  # while somebody writes the first message
        greeting = f"talking with {model}; /help lists what can be written besides messages"
        messages = Messages(sys.stdin, greeting)
        Talk(conversation, shown_on(out, as_json=common.json)).hold(messages)


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--chat-template-kwargs {text!r}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--chat-template-kwargs {text!r}: must be a JSON object")
    return found
