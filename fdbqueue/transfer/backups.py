"""Back up an embedded folder while processes use it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fdbqueue.base.arguments import path_of
from fdbqueue.engine.embedded.store.backup import copy_folder
from fdbqueue.engine.url import parse
from fdbqueue.errors import TransferError


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup."""

    folder: Path
    """The folder. Open it as ``file:FOLDER``, or move it to the place of the other to restore it."""
    size_bytes: int
    """Its size."""
    seconds: float
    """The time of this call."""


def backup(url: str, to: str | os.PathLike[str]) -> BackupReport:
    """Copy an embedded folder, with all its queues and other keys, while processes read and write there.

    The backup is the state after one commit. Commits that were acknowledged before the call are in it. It appears when
    it is whole and on the disk. A backup that was interrupted leaves nothing but a folder ``TO.part``, which the next
    one replaces.

    Args:
        url: the database: ``file:PATH``.
        to: the folder to make.

    Raises:
        TransferError: the URL names no folder. A cluster has backup tools of its own.
        StorageError: there is no database; the folder `to` exists; or the disk refused.

    *Conflicts:* none. *Cost:* reads and writes the whole data once, in a process of its own.
    """
    began = time.monotonic()
    if not isinstance(url, str):
        raise TypeError(f"backup takes the URL of a database, as 'file:shop', not {url!r}.")
    scheme, path, _ = parse(url)
    if scheme != "file":
        remedy = "fdbbackup backs a cluster up" if scheme == "fdb" else "a memory: database ends with its process"
        raise TransferError(f"{url}: only the folder of a file: database can be backed up; {remedy}.")
    source, folder = os.path.abspath(os.path.expanduser(path)), path_of(to, "a backup's folder").absolute()
    size_bytes = copy_folder(source, str(folder))
    return BackupReport(folder, size_bytes, time.monotonic() - began)
