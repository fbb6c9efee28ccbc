"""What the site does with pages that a forge shows as they are: pictures for Mermaid, links for names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

from . import reference


def picture_of(source: str) -> str:
    """Return the name of the picture that a Mermaid source was drawn as.

    >>> picture_of("flowchart TD")
    'mermaid-a3d27ba5.svg'
    """
    return f"mermaid-{hashlib.sha256(source.strip().encode()).hexdigest()[:8]}.svg"


class MermaidPictures(SphinxTransform):
    """Put the picture in the place of each Mermaid block, which no script draws in the reader's browser."""

    default_priority = 10

    def apply(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(nodes.literal_block)):
            if node.get("language") != "mermaid":
                continue
            name = picture_of(node.astext())
            if not Path(self.env.srcdir, "docs", "pictures", name).exists():
                node["language"] = "text"  # it was changed since, and is not drawn yet
            else:
                section = node.parent
                title = section.next_node(nodes.title) if section is not None else None
                alt = f"Picture: {title.astext()}" if title else "Picture"
                depth = self.env.docname.count("/")
                uri = "../" * depth + "docs/pictures/" + name
                node.replace_self(nodes.paragraph("", "", nodes.image(uri=uri, alt=alt)))


class NamesAreLinks(SphinxPostTransform):
    """Link each ``Class`` and ``Class.verb`` in the prose to its place in the reference."""

    default_priority = 20

    def run(self, **kwargs: Any) -> None:
        anchors = reference.anchors()
        here = self.env.docname
        for node in list(self.document.findall(nodes.literal)):
            found = anchors.get(node.astext().split("(")[0])
            if found is None or within(node, (nodes.reference, nodes.title)) or found[0] == here:
                continue
            made = make_refnode(self.app.builder, here, found[0], found[1], node.deepcopy(), found[0].split("/")[-1])
            node.replace_self(made)


def within(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            return True
        parent = parent.parent
    return False


def setup(app: Any) -> None:
    app.add_transform(MermaidPictures)
    app.add_post_transform(NamesAreLinks)
