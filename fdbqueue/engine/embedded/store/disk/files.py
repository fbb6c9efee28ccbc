"""LMDB's files in a folder: open, check and grow them, with a clear error for every failure."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

import lmdb

from fdbqueue.engine.embedded.store import commit_log
from fdbqueue.engine.embedded.store.commit.request import apply
from fdbqueue.engine.embedded.store.disk import data_file, disk, folder, layout
from fdbqueue.engine.embedded.store.disk.disk import Disk, Durable, Relaxed, decode
from fdbqueue.engine.embedded.store.disk.layout import Handle, Txn
from fdbqueue.engine.embedded.store.disk.locks import NAME, FolderLock, wait_for_stopped
from fdbqueue.engine.embedded.store.disk.rows import Databases
from fdbqueue.engine.embedded.store.opening import StoreClock, StoreOptions
from fdbqueue.engine.errors import StorageError

log = logging.getLogger("fdbqueue.engine")

MAX_READERS: Final = 4096
"""Maximum number of transactions, of all processes together, that read at one time."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DAMAGE: Final = (
    *(lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError),
    *(lmdb.BadTxnError, lmdb.ProblemError, lmdb.CursorFullError),
)
"""The errors that a damaged page leads to. LMDB refuses a transaction that has met one: BadTxnError."""
_OURS: Final = folder.NAMES | {"lost+found"}


def explain(path: str, error: lmdb.Error) -> StorageError:
    """Return an error for LMDB's `error` that names the cause, the folder and the remedy."""
    code = getattr(error, "code", 0)
    if code in FULL:
        return StorageError(f"{path}: the disk, or a quota, is full. Make room and try again.")
    if code in (errno.EACCES, errno.EROFS, errno.EPERM):
        return StorageError(f"{path}: no right to write there. The folder and its files must be writable.")
    if code == errno.EIO:
        # LMDB also raises this if the disk accepted only the first part of a write.
        return StorageError(f"{path}: the disk did not take all: it, or a quota, is full, or it failed ({error}).")
    if isinstance(error, lmdb.MapFullError):
        return StorageError(f"{path}: the database has reached its max_size; give a larger one in the URL.")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(f"{path}: more than {MAX_READERS} transactions are open at one time, in all processes.")
    if isinstance(error, lmdb.VersionMismatchError):
        return StorageError(f"{path}: made, or in use, by a program with another version of LMDB's format.")
    if isinstance(error, _DAMAGE):
        return StorageError(
            f"{path}: the file is damaged or no database of fdbqueue ({error}). `fdbqueue check --file {path}` tells"
            " what is. Restore a backup."
        )
    return StorageError(f"{path}: {error}")


class Files:
    """An open environment and its databases; `map_size` is the size of its address space."""

    __slots__ = (
        "_closed",
        "_redo",
        "dbs",
        "disk",
        "env",
        "folder_lock",
        "identity",
        "lost",
        "map_size",
        "options",
        "path",
    )

    def __init__(self, path: str, options: StoreOptions, clock: StoreClock) -> None:
        self.path = path
        self.options = options
        self._closed = False
        self.lost = False
        """Whether LMDB is closed, on purpose or after an error. Then the files must be opened again."""
        _check_folder(path)
        _check_data_file(path)
        self.folder_lock = FolderLock(path, clock.boot())
        try:
            self._redo: bytes | None = None
            if self.folder_lock.alone and not self.folder_lock.in_order:
                self.folder_lock.begin_anew()
                self._redo = disk.roll_back(path)
            if self.folder_lock.alone:
                data_file.check(path)
            self._open(clock)
        except BaseException:
            self.folder_lock.close()
            raise
        self.folder_lock.opened()

    def _open(self, clock: StoreClock) -> None:
        path = self.path
        size = _file_size(path)
        self.map_size = min(max(self.options.map_size, _round(size)), max(self.options.max_size, size))
        try:
            self.env = self._environment()
            if not self.folder_lock.alone and str(os.getpid()) in self.env.readers().split()[3::3]:
                # A former program had this PID: `exec` has replaced it, or it was killed long ago. Its readers are
                # left, and the file would grow with each commit. LMDB takes them for readers of this process, and
                # frees those when a process that has read closes it.
                self.env.begin().abort()
                self.env.close()
                self.env = self._environment()
        except lmdb.Error as error:
            raise explain(path, error) from error
        try:
            self.folder_lock.found(self.env.info()["last_txnid"])
            disk = Durable(path, self.env, self.folder_lock)
            self.disk: Disk = disk
            try:
                self.env.reader_check()
                self.dbs = self._prepared(disk, clock)
                if not self.options.durable:
                    self.disk = Relaxed(path, self.env, self.folder_lock)
                    disk.close()
            except BaseException:
                disk.close()
                raise
            self.identity = identity(path)
        except (lmdb.Error, StorageError) as error:
            self.env.close()
            raise (explain(path, error) if isinstance(error, lmdb.Error) else error) from error
        except FileNotFoundError as error:
            self.env.close()
            raise folder.refusal(path, folder.DATA, error) from error

    def _environment(self) -> lmdb.Environment:
        return folder.open_environment(
            self.path,
            map_size=self.map_size,
            max_dbs=8,
            max_readers=MAX_READERS,
            max_spare_txns=64,
            sync=False,  # `disk` does that, with one wait
            metasync=False,
        )

    def in_place(self) -> bool:
        """Return whether the folder still has these files; False if they were removed or replaced."""
        return identity(self.path) == self.identity

    def grow(self) -> None:
        """Double the address space. No transaction of this process may be open.

        Raises:
            StorageError: the address space is already at `max_size`.
        """
        size = min(self.map_size * 2, self.options.max_size)
        if size <= self.map_size:
            raise StorageError(
                f"{self.path}: the database is full at max_size={self.options.max_size}. Clear something,"
                " or give a larger max_size in the URL."
            )
        self._set_map_size(size)

    def adopt(self) -> None:
        """Adopt the map size that another process has set. No transaction may be open."""
        self._set_map_size(0)

    def _set_map_size(self, size: int) -> None:
        try:
            self.env.set_mapsize(size)
        except lmdb.Error as error:
            # The old map is gone, so this environment is unusable.
            self.env.close()
            self.lost = True
            raise explain(self.path, error) from error
        self.map_size = self.env.info()["map_size"]

    def close(self) -> None:
        """Close LMDB's files; a second time does nothing. No transaction may be open."""
        if self._closed:
            return
        self._closed = self.lost = True
        try:
            if self.folder_lock.last_one():
                self.disk.release()
        except (StorageError, lmdb.Error) as error:
            log.warning("%s: will be brought in order when it is opened again: %s", self.path, error)
        self.disk.close()
        self.env.close()
        self.folder_lock.close()

    def _prepared(self, disk: Durable, clock: StoreClock) -> Databases:
        """Run `_prepare`; repeat it if another process has made the map larger, or if the map is full."""
        if not self.folder_lock.alone:
            wait_for_stopped(self.path)
        while True:
            try:
                return self._prepare(disk, clock)
            except lmdb.MapResizedError:
                self.adopt()
            except lmdb.MapFullError:
                self.grow()

    def _prepare(self, disk: Durable, clock: StoreClock) -> Databases:
        """Create the databases or check the existing ones, and note the boot."""
        with self.env.begin(write=True) as txn:
            found, meta = self._format(txn)
            number = txn.id()
            if found is None:
                disk.begun(number)
                disk.label_other(number, None)
                txn.put(layout.FORMAT_KEY, new_format(self.path), db=meta)
            dbs = Databases(
                path=self.path,
                checked=(found or new_format(self.path)) == layout.FORMAT,
                ignoring=not self.options.checksums,
                data=self.env.open_db(layout.DATA, txn=txn),
                long=self.env.open_db(layout.LONG, txn=txn),
                log=self.env.open_db(layout.LOG, txn=txn),
                meta=meta,
                top=self.env.open_db(None, txn=txn),
            )
        if found is None:
            disk.ensure(number)
            _keep_names(self.path)
        self._make_again(dbs, disk)
        self._note_boot(dbs, disk, clock)
        return dbs

    def _format(self, txn: Txn) -> tuple[bytes | None, Handle]:
        """Return the format of our environment, None for a new one; never write into another program's environment."""
        found, meta = _mark(self.path, self.env, txn, create=not txn.stat()["entries"])
        if found == layout.FORMER_FORMAT and not self.folder_lock.alone:
            raise StorageError(
                f"{self.path}: its format is {found.decode()!r}, which this version of fdbqueue brings up to date when"
                " no other process has it open. Close it in the others first."
            )
        return found, meta

    def _make_again(self, dbs: Databases, disk: Durable) -> None:
        """Repeat the commit that a power cut may have left incomplete."""
        if self._redo is None:
            return
        commit = decode(self._redo)
        with self.env.begin(dbs.data, write=True) as txn:
            number = txn.id()
            disk.begun(number)
            disk.label_other(number, self._redo)
            for batch, mutations in enumerate(commit.requests):
                apply(txn, dbs, mutations, commit.version, batch)
            commit_log.append(txn, dbs, commit_log.tail_of(txn, dbs), commit.version, commit.time_us, (), ())
        self._redo = None
        disk.ensure(number)

    def _note_boot(self, dbs: Databases, disk: Durable, clock: StoreClock) -> None:
        boot = clock.boot()
        with self.env.begin(write=True) as txn:
            current = txn.get(layout.FORMAT_KEY, db=dbs.meta) != layout.FORMER_FORMAT
            if current and txn.get(layout.BOOT_KEY, db=dbs.meta) == boot:
                return
            # No old transaction is left. After a boot, none survives, and the old boot's clock is unrelated to this
            # one's. With a former format, this process is the only one that has the folder open.
            number = txn.id()
            disk.begun(number)
            disk.label_other(number, None)
            if not current:
                txn.put(layout.FORMAT_KEY, layout.PLAIN_FORMAT, db=dbs.meta)
            txn.put(layout.BOOT_KEY, boot, db=dbs.meta)
            commit_log.begin(txn, dbs, clock.now_ns() // 1000, jump=layout.REBOOT_VERSIONS)
        disk.ensure(number)


def new_format(path: str) -> bytes:
    """Return the format of a new folder. A database in memory needs no checksums: it has no disk."""
    return layout.PLAIN_FORMAT if folder.made(path) else layout.FORMAT


def _check_folder(path: str) -> None:
    folder.make(path)
    names = set(os.listdir(path))
    if names and "data.mdb" not in names and not names <= _OURS:
        raise StorageError(
            f"{path}: the folder has other files, such as {min(names - _OURS)!r}. Give the database its own folder."
        )


def _check_data_file(path: str) -> None:
    """Raise if the data file is not ours. This runs before any write, even before the folder lock's file is made.

    If the folder lock's file exists, a process of ours has opened the folder before. A backup does not contain it, and
    a power cut may remove it. After a power cut the data file may be torn, but then it has a label.
    """
    guarded = Path(path, NAME)
    if folder.look(path, NAME) or not folder.look(path, folder.DATA) or not _file_size(path):
        return
    try:
        if disk.labelled(path):
            return
        data_file.check(path, mend=False)
        with (
            folder.open_environment(path, readonly=True, max_dbs=8) as env,
            env.begin() as txn,
        ):
            if txn.stat()["entries"]:
                _mark(path, env, txn, create=False)
    except (lmdb.Error, StorageError) as error:
        if not guarded.exists():  # else another process is opening the folder now, and writes
            raise (explain(path, error) if isinstance(error, lmdb.Error) else error) from error


def _mark(path: str, env: lmdb.Environment, txn: Txn, *, create: bool) -> tuple[bytes | None, Handle]:
    """Return the format of an environment, None for a new one, and the database that it is stored in."""
    try:
        meta = env.open_db(layout.META, txn=txn, create=create)
    except lmdb.NotFoundError:
        raise StorageError(f"{path}: the LMDB database there is not fdbqueue's.") from None
    found: bytes | None = txn.get(layout.FORMAT_KEY, db=meta)
    if found is not None and found not in layout.FORMATS:
        raise StorageError(
            f"{path}: its format is {found.decode('latin-1')!r} and this version of fdbqueue reads"
            f" {layout.FORMAT.decode()!r}. Use the version that made it."
        )
    return found, meta


def _keep_names(path: str) -> None:
    """Wait until the names of the folder, of its parents and of its files are on the disk."""
    for parent in (path, *map(str, Path(path).parents)):
        try:
            fd = os.open(parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:  # an unreadable parent, or a file system without this call
            log.info("%s: can't be written when asked to, as files can: %s", parent, error)


def identity(path: str) -> tuple[int, int] | None:
    """Return a unique id of the data file in the folder `path` (device, inode); None if there is none."""
    try:
        found = os.lstat(os.path.join(path, folder.DATA))
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _file_size(path: str) -> int:
    try:
        return os.lstat(os.path.join(path, folder.DATA)).st_size
    except OSError:
        return 0


def _round(size: int) -> int:
    """Return a power of two that is larger than twice `size`, or 0 for 0."""
    return 1 << (2 * size).bit_length() if size else 0
