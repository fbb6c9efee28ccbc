"""The configuration of Sphinx. See `build.py` for what it is given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import fdbqueue
from docs.site import transforms

project = "fdbqueue"
author = "The fdbqueue authors"
copyright = "the fdbqueue authors, Apache License 2.0"
version = release = fdbqueue.__version__

root_doc = "index"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
smartquotes = False  # options begin with two dashes
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
myst_heading_slug_func = "docs.site.reference.slug"
nitpicky = True
suppress_warnings = ["myst.header"]  # a generated page may begin its sections lower

html_theme = "furo"
html_title = "fdbqueue"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_permalinks_icon = "#"
templates_path: list[str] = []
pygments_style = "default"
pygments_dark_style = "github-dark"


def fold_others(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the sidebar unfold only a page's own sections; with all pages in each, the build takes twice as long."""
    if whole := context.get("toctree"):
        context["toctree"] = lambda **options: whole(**options | {"collapse": True})


def setup(app: Any) -> dict[str, Any]:
    transforms.setup(app)
    app.connect("html-page-context", fold_others, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
