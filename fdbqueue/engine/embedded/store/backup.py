"""Copy an embedded folder while processes use it, into a folder that can be opened.

LMDB copies a consistent state: that of one commit, while others go on. The copy is compact and has no label, so no
recovery is needed. It runs in a process of its own. In a process that writes, the map may grow under the copy.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lmdb

from fdbqueue.base.aside import sync
from fdbqueue.engine.embedded.store.disk import data_file, folder
from fdbqueue.engine.embedded.store.disk.files import explain
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.engine.errors import StorageError

_BY_DAMAGE = (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)
"""The signals that end a process which reads a damaged page."""


def copy_folder(path: str, to: str) -> int:
    """Copy the folder `path` to a new folder. Return the size of the copy in bytes.

    The copy appears under its name when it is whole and on the disk.

    Raises:
        StorageError: there is no database in the folder; `to` exists; or the disk refused.
    """
    if folder.look(path, folder.DATA) is None:
        raise StorageError(f"{path}: there is no database to back up.")
    if os.path.exists(to):
        raise StorageError(f"{to}: exists already. Give a new folder for the backup.")
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as backup; backup._main()", path, to],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        if -done.returncode in _BY_DAMAGE:
            raise StorageError(
                f"{to}: the process that copied ended by {signal.Signals(-done.returncode).name}, as a damaged page of"
                f" {path} ends it. `fdbqueue check --file {path}` tells whether there is one."
            )
        lines = done.stderr.strip().splitlines()
        raise StorageError(lines[-1] if lines else f"{to}: the process that copied ended with {done.returncode}.")
    return os.path.getsize(os.path.join(to, "data.mdb"))


def _main() -> None:
    """Copy the folder that the arguments name, in a process of its own."""
    path, to = sys.argv[1:]
    try:
        copy_data(path, to)
    except StorageError as error:
        sys.exit(str(error))


def copy_data(path: str, to: str) -> None:
    part = f"{to}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        if os.path.lexists(part):
            raise StorageError(f"{part}: is in the way, and can't be removed. Remove it.")
        folder.make(part)
        store = Store.open(path, {})
        try:
            store.files.env.copy(part, compact=True)
            folder.adopt(part, folder.DATA)
        finally:
            store.close()
        data_file.check(part, mend=False)
        for name in (os.path.join(part, "data.mdb"), part):
            sync(name)
        os.rename(part, to)
        sync(Path(to).parent)
    except lmdb.Error as error:
        raise StorageError(f"{to}: the backup could not be written. {explain(path, error)}") from error
    except OSError as error:
        raise StorageError(f"{to}: the backup could not be written ({error}).") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
