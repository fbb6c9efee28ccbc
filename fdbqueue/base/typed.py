"""Decoders of msgspec for types that a program gives. They are made one at a time.

msgspec looks at the fields of a class when it first needs them, and keeps what it found at the class. Another thread
that decodes to this class meanwhile ends the process by SIGSEGV (msgspec 0.22.0). The library's own classes need no
lock: their decoders are made when their modules are imported.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import msgspec

_lock = threading.Lock()


def decoder(module: Any, type: Any, **hooks: Any) -> Any:
    """Return a decoder to `type`.

    Args:
        module: `msgspec.json` or `msgspec.msgpack`.
        type: a type that msgspec knows.
        hooks: as those of msgspec's own.

    Raises:
        TypeError: msgspec does not know the type.
    """
    with _lock:
        return module.Decoder(type, **hooks)


def look_at(type: Any) -> None:
    """Let msgspec look at a type, before `msgspec.convert` or a decode to it needs that.

    Raises:
        TypeError: msgspec does not know the type.
    """
    decoder(msgspec.msgpack, type)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
