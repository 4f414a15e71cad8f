"""Chat templates: the programs in jinja2's language that write messages as a model's prompt.

A template comes with a model and is not trusted: another process renders it, within limits
(``renderer.Limits``).
"""

from ptir.text.chat_template.renderer import Limits, Renderer
from ptir.text.chat_template.template import (
    REASONING,
    ChatTemplates,
    Message,
    checked,
    read_templates,
    special_tokens,
)

__all__ = [
    "REASONING",
    "ChatTemplates",
    "Limits",
    "Message",
    "Renderer",
    "checked",
    "read_templates",
    "special_tokens",
]
