"""Setting many keys in one call, where the engine has one for it."""

from __future__ import annotations

from collections.abc import Sequence

from fdbqueue.engine.api import Transaction


def set_rows(tr: Transaction, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Set each of `keys` to the value in its place, as so many calls of ``tr.set`` do.

    *Conflicts:* as `set`. *Cost:* so many writes; on the embedded engine a few steps of Python for all of them.
    """
    # Of the type: what stands around another's transaction, and passes all on that it has not itself, sees each set.
    at_a_stroke = getattr(type(tr), "set_rows", None)
    if at_a_stroke is not None:
        at_a_stroke(tr, keys, values)
        return
    write = tr.set
    for key, value in zip(keys, values, strict=True):
        write(key, value)
