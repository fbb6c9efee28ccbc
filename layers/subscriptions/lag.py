"""How far a subscription has looked, and whether it is suspended, for monitoring."""

from __future__ import annotations

from fdbqueue.lowlevel import Layout

from ._records import read_pointer, read_registration

BEHIND_ALL = b"\xff"
"""Behind every packed position: a subscription that has looked at all of its spans."""


def looks_from(layout: Layout, name: str, stored: bytes) -> bytes:
    """Return the packed position from which on a subscription has looked at nothing, from its stored pointer.

    Raises:
        FormatError: this version of the library can't read it.
    """
    spans = read_pointer(layout, name, stored).spans
    return spans[-1][0] if spans else BEHIND_ALL


def is_suspended(layout: Layout, name: str, stored: bytes) -> bool:
    """Return whether a subscription is suspended, from its stored registration.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return read_registration(layout, name, stored).suspended
