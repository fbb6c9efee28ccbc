"""Handle forks, so that a child process can open the same files again.

No LMDB object may cross a fork: the child's copy of the environment shares the parent's slots in the lock file's
reader table. The child leaves that copy untouched, never frees it, and opens the files again. py-lmdb (3.0) would
refuse that. It opens no file twice in a process, and a child inherits its list of open files. So in the child, the
process id is a part of each file's identity.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

try:
    _envid: Any = importlib.import_module("lmdb._envid")
except ImportError:  # another version, which may not need this
    _envid = None

generation = 0
"""Number of forks between the first process and this one."""
_untouched: Final[list[Any]] = []
_identify: Final[Any] = getattr(_envid, "env_keys", None)


def keep(parents: list[Any]) -> None:
    """Never free `parents`, objects of the parent process, in this child; allow the child to open files again."""
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
