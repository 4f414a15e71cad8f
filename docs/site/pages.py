"""What the site adds to a page while Sphinx reads it, so that pages stay plain Markdown.

- ``index.md`` lists the pages of its room: lines that begin with a link are the table of contents.
- A ``<picture>`` of two files becomes two images, one for each colour scheme of the theme.
- A link that leaves docs/ has no page here: a file becomes a download, a folder its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
LISTED: Final = re.compile(r"(?m)^(?:\||-|\d+\.) " + LINK.pattern)
FENCE: Final = re.compile(r"(?ms)^ *(```+).*?^ *\1[ \t]*$")
PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)


def setup(app: Sphinx) -> dict[str, Any]:
    """The extension."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}


def read(app: Sphinx, document: str, source: list[str]) -> None:
    """Change one page's text in place."""
    page = Path(app.env.doc2path(document))
    if page.suffix == ".md":
        source[0] = sited(source[0], page, Path(app.srcdir))


def sited(text: str, page: Path, docs: Path) -> str:
    """A page as the site reads it."""
    text = PICTURE.sub(_images, text)
    text = outside_fences(text, lambda part: LINK.sub(lambda m: _link(m, page, docs), part))
    return text + contents(text) if page.name == "index.md" else text


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """``change`` applied to what is not in a fence."""
    parts, end = list[str](), 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def contents(text: str) -> str:
    """A hidden table of contents: the pages whose links begin a row or an item, in order."""
    found = [m[2] for m in LISTED.finditer(FENCE.sub("", text)) if m[2].endswith((".md", ".rst"))]
    below = [target for target in dict.fromkeys(found) if not target.startswith("..")]
    return "\n\n".join(["", "```{toctree}\n:hidden:\n" + "\n".join(below) + "\n```", ""])


def _images(found: re.Match[str]) -> str:
    dark, light, said = found.groups()
    return "\n".join(
        f"```{{image}} {file}\n:alt: {said}\n:class: only-{scheme}\n```\n"
        for file, scheme in ((light, "light"), (dark, "dark"))
    )


def _link(found: re.Match[str], page: Path, docs: Path) -> str:
    words, target, _ = found.groups()
    file = (page.parent / target).resolve()
    if file.is_relative_to(docs):
        return found[0]
    return f"{{download}}`{words} <{target}>`" if file.is_file() else words
