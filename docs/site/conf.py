"""The documentation site: `make docs` builds it from the pages of docs/, as they are.

What a site needs beyond plain Markdown is added while a page is read; see ``pages.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().parent
sys.path.insert(0, str(SITE))

project = "ptir"
author = copyright = "ptir contributors"
release = version = (SITE.parent.parent / "VERSION").read_text("utf-8").split("==")[1].strip()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "pages",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["site"]
myst_heading_anchors = 3
pygments_style = "default"

nitpicky = True
# Annotations name types of NumPy and of rooms without a page here; links of pages are all checked.
nitpick_ignore_regex = [("py:.*", ".*")]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autosummary_generate = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = "ptir"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
