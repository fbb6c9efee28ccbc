"""The public names of the library with their parameters: ``python -m tests.release.names > public_names.txt``.

`tests/release/public_names.txt` keeps them. A test compares, so that a review sees each change of the interface.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from docs.site import reference

KEPT = Path(__file__).with_name("public_names.txt")


def lines() -> Iterator[str]:
    """Yield each public class, function and method with its signature on one line."""
    for place, names in reference.public().items():
        for name, one in sorted(names):
            if inspect.isclass(one):
                yield f"{place}.{name}"
                for method, member in reference.methods(one):
                    called = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                    shown = method if isinstance(member, property) else one_line(method, called)
                    yield f"{place}.{name}.{shown}"
            else:
                yield f"{place}.{one_line(name, one) if callable(one) else name}"


def one_line(name: str, called: object) -> str:
    return " ".join(reference.signature(name, called).split()).replace("( ", "(").replace(", )", ")")


if __name__ == "__main__":
    for line in lines():
        print(line)
