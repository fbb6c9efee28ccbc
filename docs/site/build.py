"""Lay out what Sphinx reads, and run it with warnings as errors.

Sphinx reads one folder. Here it has the repository's own files in their own places, so that links between them work as
on a forge. The reference is written into it. The links of a front page become its part of the site's contents.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from sphinx.cmd.build import build_main

from . import reference

PAGES = ("README.md", "ARCHITECTURE.md", "GLOSSARY.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("examples", "layers", "containers", "notebooks")
"""Folders whose files pages link to; the site has the linked files for download."""


FRONT_PAGES = ("guides", "explanation", "operations", "adr", "benchmarks")
"""Folders whose README lists their pages."""


def lay_out(root: Path, source: Path) -> None:
    """Fill the folder that Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "docs", source / "docs", ignore=shutil.ignore_patterns("site", "__pycache__"))
    for name in PAGES:
        shutil.copy(root / name, source)
    for folder in LINKED:
        shutil.copytree(root / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    (source / "docs" / "README.md").unlink()
    (source / "index.md").write_text(front_page((root / "docs" / "README.md").read_text()))
    reference.write(source / "docs" / "reference")
    for page in source.glob("**/*.md"):
        mend_links(source, page)
    placed = {"README.md", "SECURITY.md"}
    for page in (*(source / "docs" / folder / "README.md" for folder in FRONT_PAGES), source / "docs" / "project.md"):
        page.write_text(page.read_text() + contents(source, page, placed))


def mend_links(source: Path, page: Path) -> None:
    """Let a page's links to folders lead to pages that list their files, and those to `docs/README.md` to the front."""
    text = page.read_text()
    for target in set(re.findall(r"\]\(([^)#:]+)\)", text)):
        found = page.parent / target
        if found.is_dir():
            text = text.replace(f"]({target})", f"]({target}/files.md)")
            files = sorted(path.name for path in found.iterdir() if path.is_file() and path.name != "files.md")
            listed = "\n".join(f"- [{name}]({name})" for name in files)
            (found / "files.md").write_text(f"---\norphan: true\n---\n# {found.name}\n\n{listed}\n")
        elif os.path.normpath(found) == os.path.normpath(source / "docs" / "README.md"):
            text = text.replace(f"]({target})", f"]({os.path.relpath(source / 'index.md', page.parent)})")
    page.write_text(text)


CONTENTS = (
    "README", "docs/tutorial", "docs/guides/README", "docs/reference/README", "docs/explanation/README",
    "docs/operations/README", "SECURITY", "docs/faq", "docs/comparison", "docs/project",
)  # fmt: skip


def front_page(text: str) -> str:
    """Return `docs/README.md` as the front page of the site, which is a folder higher.

    >>> front_page("[a](../README.md) [b](guides/README.md)").splitlines()[0]
    '[a](README.md) [b](docs/guides/README.md)'
    """
    text = re.sub(r"\]\((?!\.\./|https?:)", "](docs/", text).replace("](../", "](")
    return text + "\n```{toctree}\n:hidden:\n\n" + "\n".join(CONTENTS) + "\n```\n"


def contents(source: Path, page: Path, placed: set[str]) -> str:
    """Return the table of contents that a front page's links make: each page once, where it is listed first."""
    found = []
    for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()):
        path = (page.parent / target).resolve().relative_to(source.resolve()).as_posix()
        if path not in placed and (path.startswith("docs/adr/") or target.count("/") <= (page.name == "project.md")):
            placed.add(path)
            found.append("/" + path.removesuffix(".md"))
    return "\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(found) + "\n```\n"


HELPS = {
    "<pre>": '<pre tabindex="0">',
    "<p><img ": '<p tabindex="0"><img ',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Contents of the site">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="Contents of the page">',
    '<article role="main" id="furo-main-content">\n          \n<noscript>': (
        '<article role="main" id="furo-main-content">\n<h1>Search</h1>\n<noscript>'
    ),
}
"""What the theme's pages lack for a keyboard and a screen reader: focus for what scrolls, names for what is twice."""


def help_readers(target: Path) -> None:
    for page in target.glob("**/*.html"):
        text = page.read_text()
        for lacks, has in HELPS.items():
            text = text.replace(lacks, has)
        page.write_text(text)


def build(root: Path, target: Path) -> int:
    """Build the site into a folder. Return Sphinx's exit code: 0 if there was no warning."""
    source = target.parent / f"{target.name}-source"
    lay_out(root, source)
    shutil.rmtree(target, ignore_errors=True)
    options = ["-c", str(root / "docs" / "site"), "-b", "html", "-W", "--keep-going", "-q", "-j", "2"]
    options += ["-E", "-d", str(target.parent / f"{target.name}-doctrees")]
    code = build_main([*options, str(source), str(target)])
    help_readers(target)
    return code
