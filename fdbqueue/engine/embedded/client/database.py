"""The embedded database: it creates transactions, and offers reads and writes that are one transaction each."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from fdbqueue.engine import api
from fdbqueue.engine.api import StreamingMode
from fdbqueue.engine.blocking import wake_all
from fdbqueue.engine.embedded.client.options import (
    DEFAULT_FOR,
    MAX_WATCHES,
    MOST,
    SNAPSHOT_RYW,
    USE_CONFIG_DATABASE,
    DatabaseOptions,
    Settings,
    Unsupported,
    number,
)
from fdbqueue.engine.embedded.client.pages import KeyValue
from fdbqueue.engine.embedded.client.pending import Outstanding
from fdbqueue.engine.embedded.client.transaction import Transaction, TransactionCreator
from fdbqueue.engine.embedded.client.write_api import add_operations
from fdbqueue.engine.embedded.store.commit.scheduling import TimeSlice
from fdbqueue.engine.embedded.store.members import Members
from fdbqueue.engine.embedded.store.store import Store
from fdbqueue.engine.errors import FDBError, StorageError
from fdbqueue.engine.transactional import repeated_call

T = TypeVar("T")


class Database(TransactionCreator):
    """An embedded database: a folder that any number of processes share, or one in memory.

    The first use opens its store. A use after a fork or after unpickling opens it again. Each read or write on the
    database itself is one transaction, repeated until it commits.
    """

    def __init__(self, path: str | None, options: Mapping[str, str]) -> None:
        self._path = path
        self._url_options = dict(options)
        self._settings = Settings()
        self._outstanding = Outstanding()
        self._opened: Store | None = None
        self._closed = False
        self._new_locks()
        _databases.add(self)

    def _new_locks(self) -> None:
        """Make the locks, at the start and in a forked child: a thread of the parent may have held the old ones."""
        self._lock = threading.Lock()
        self._outstanding.lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the database's location. A database in memory ends with the process that made it."""
        path, options = self._path, self._url_options
        if path is None:
            path, options = self._store().path, {**options, "durability": "relaxed"}
        return _unpickled, (path, options, self._settings, self._outstanding.limit)

    def __repr__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self._url_options.items())
        where = "memory:" if self._path is None else f"file:{self._path}"
        return f"<Database {where}{'?' + query if query else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this database object, after the commits that are under way. Every later use raises StorageError.

        Calls that wait for a change end with StorageError. Other processes and other objects of the same folder are not
        affected. The contents of a database in memory are then lost.
        """
        with self._lock:
            store, self._opened = self._opened, None
            self._closed = True
        if store is not None:
            store.close()
        wake_all()  # another object of the same folder may keep the store open, and its watches

    def _store(self) -> Store:
        store = self._opened
        if store is None:
            with self._lock:
                store = self._opened
                if self._closed:
                    held = " What it held is gone." if self._path is None else ""
                    raise StorageError(f"{self!r} was closed.{held} Call fdbqueue.open again for another one.")
                if store is None:
                    store = self._opened = Store.open(self._path, self._url_options)
        return store

    # -- transactions --------------------------------------------------------------------------------------------

    @property
    def commits_in_flight(self) -> int:
        """Return how many commits one thread should have under way to write at full speed.

        The store makes pending commits in one step. That pays off if commits wait for the disk.
        """
        return 8 if self._store().options.durable else 2

    def next_turn(self) -> TimeSlice | None:
        """Return the future of this process's next time slice, or None if it has one now (`engine.turns`)."""
        # Not kept: a forked child's store has another scheduler.
        return (self._opened or self._store()).process_scheduler.next_turn()

    @property
    def shares_turns(self) -> bool:
        """Whether another process had a time slice lately."""
        return self._store().process_scheduler.shared

    @property
    def members(self) -> Members:
        """The processes that use this database (`engine.members`)."""
        return (self._opened or self._store()).members

    @property
    def options(self) -> DatabaseOptions:
        return DatabaseOptions(self)

    def _set_option(self, code: int, param: bytes | None) -> None:
        """Set an option. After a refused option every operation on the database fails."""
        if code == USE_CONFIG_DATABASE:
            raise Unsupported("use_config_database")
        if self._settings.error:
            return
        settings = self._settings.copy()  # transactions under way keep the options they began with
        if code in DEFAULT_FOR or code in SNAPSHOT_RYW:
            settings.try_set(DEFAULT_FOR.get(code) or SNAPSHOT_RYW[code], param)
        elif code in MOST:
            try:
                value = number(param, 0, MOST[code])
            except FDBError as error:
                settings.refuse(error.code)
            else:
                if code == MAX_WATCHES:
                    self._outstanding.limit = value
        self._settings = settings

    def get_client_status(self) -> Any:
        """Raise `Unsupported`: there is no connection that has a status."""
        raise Unsupported("get_client_status")

    def open_tenant(self, name: object) -> Any:
        """Raise `Unsupported`: the embedded engine has no tenants."""
        raise Unsupported("open_tenant")

    def _run(self, body: Callable[[Transaction], T]) -> T:
        """Run `body` in transactions until one commits."""
        tr = self.create_transaction()
        return repeated_call(cast(Any, tr), lambda: body(tr))

    # -- reads ---------------------------------------------------------------------------------------------------

    def get(self, key: api.Key) -> Any:
        """Return the value of `key`, or None if it has none."""
        return self._run(lambda tr: tr[key].value)

    def __getitem__(self, key: api.Key | slice) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)

    def get_key(self, key_selector: api.KeySelector) -> Any:
        """Return the key that a selector names."""
        return self._run(lambda tr: tr.get_key(key_selector).value)

    def get_range(
        self,
        begin: api.Bound,
        end: api.Bound,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.want_all,
    ) -> list[KeyValue]:
        """Return the rows of a range, read in one transaction."""
        return self._run(lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list())

    def get_range_startswith(self, prefix: api.Key, *args: object, **kwargs: object) -> list[KeyValue]:
        """Return the rows whose keys start with `prefix`, read in one transaction."""
        return self._run(lambda tr: tr.get_range_startswith(prefix, *args, **kwargs).to_list())

    # -- writes --------------------------------------------------------------------------------------------------

    def set(self, key: api.Key, value: api.Bytes) -> None:
        """Set `key` to `value`."""
        self._run(lambda tr: tr.set(key, value))

    def __setitem__(self, key: api.Key, value: api.Bytes) -> None:
        self.set(key, value)

    def clear(self, key: api.Key) -> None:
        """Clear `key`."""
        self.__delitem__(key)

    def clear_range(self, begin: api.Bound, end: api.Bound) -> None:
        """Clear the keys from `begin` up to and excluding `end`."""
        self._run(lambda tr: tr.clear_range(begin, end))

    def __delitem__(self, key_or_slice: api.Key | slice) -> None:
        self._run(lambda tr: tr.__delitem__(key_or_slice))

    def clear_range_startswith(self, prefix: api.Key) -> None:
        """Clear the keys that start with `prefix`."""
        self._run(lambda tr: tr.clear_range_startswith(prefix))

    def _atomic_operation(self, opcode: int, key: api.Key, param: api.Bytes) -> None:
        self._run(lambda tr: tr._atomic_operation(opcode, key, param))

    # -- watches -------------------------------------------------------------------------------------------------

    def get_and_watch(self, key: api.Key) -> tuple[Any, Any]:
        """Return the value of `key` and a future that becomes ready when it changes."""
        return self._run(lambda tr: (tr.get(key), tr.watch(key)))

    def set_and_watch(self, key: api.Key, value: api.Bytes) -> Any:
        """Set `key` to `value` and return a future that becomes ready when it changes again."""

        def body(tr: Transaction) -> Any:
            tr.set(key, value)
            return tr.watch(key)

        return self._run(body)

    def clear_and_watch(self, key: api.Key) -> Any:
        """Clear `key` and return a future that becomes ready when it changes again."""

        def body(tr: Transaction) -> Any:
            del tr[key]
            return tr.watch(key)

        return self._run(body)


add_operations(Database)

_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork() -> None:
    for db in list(_databases):
        db._new_locks()


os.register_at_fork(after_in_child=_after_fork)


def _unpickled(path: str, options: Mapping[str, str], settings: Settings, most_watches: int) -> Database:
    db = Database(path, options)
    db._settings = settings
    db._outstanding.limit = most_watches
    return db


def open_file(path: str, *, options: Mapping[str, str]) -> Database:
    """Open the database in the folder `path`. A missing folder is created."""
    db = Database(os.path.abspath(path), options)
    db._store()
    return db


def open_memory(*, options: Mapping[str, str]) -> Database:
    """Open a database in memory, shared with child processes. Closing it discards its contents."""
    db = Database(None, options)
    db._store()
    return db
