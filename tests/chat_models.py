"""Models to talk with: the shipped one with the template of another kind of model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ptir.runtime.specs import DEMO, data_folder

ENDING = "<|im_end|>"
CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
PLAY = """\
{%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant'] -%}
{{- raise_exception('no part is called ' + message.role) -}}
{%- endif -%}
{{- {'system': '', 'user': 'CITIZEN:\\n', 'assistant': 'ROMEO:\\n'}[message.role] -}}
{{- message.content.strip() + '\\n\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ROMEO:\\n' -}}{%- endif -%}
"""
"""A talk as the shipped model knows it: parts of a play."""


def chat_folder(folder: Path, template: Any = PLAY, **settings: Any) -> Path:
    """The shipped model in a folder of its own, with a chat template."""
    made = folder / "talks"
    shutil.copytree(data_folder(DEMO), made)
    config = json.loads((made / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"chat_template": template, **settings}
    (made / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return made
