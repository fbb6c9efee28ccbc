"""What a fork leaves behind, so that a child can open the same files again.

Nothing of LMDB may cross a fork: the child's copy of the environment shares the parent's places in the lock file's
table of readers. The child leaves it untouched, never freed, and opens the files anew. py-lmdb (3.0) stands in the
way, as it refuses to open files twice in a process and a child inherits the list of what is open: in the child the
files are therefore identified together with the process.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

try:
    _envid: Any = importlib.import_module("lmdb._envid")
except ImportError:  # another version, which may do without
    _envid = None

generation = 0
"""How many forks lie between the first process and this one."""
_untouched: Final[list[Any]] = []
_identify: Final[Any] = getattr(_envid, "env_keys", None)


def keep(parents: list[Any]) -> None:
    """Keep what belongs to the parent process from ever being freed in this child, and let files be opened again."""
    _untouched.extend(parents)
    if _identify is not None:
        _envid.env_keys = _identify_here


def _count() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_count)


def _identify_here(path: str, subdir: bool) -> tuple[Any, ...]:
    process = os.getpid()
    return tuple((process, key) for key in _identify(path, subdir))
