"""The embedded database: where transactions come from, and one-shot reads and writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fdbqueue.engine.embedded.options import DEFAULT_FOR, DatabaseOptions, Settings, Unsupported, number
from fdbqueue.engine.embedded.transaction import OPERATIONS, Transaction, _operation
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.streaming import StreamingMode


class Database:
    def __init__(self, path: str | None, options: Mapping[str, str]) -> None:
        self._path = path
        self._options = dict(options)
        self._defaults = []
        self._snapshot_ryw = 1
        self._max_watches = 10_000
        self._opened = None
        self._lock = threading.Lock()

    def _store(self):
        store = self._opened
        if store is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
                store = self._opened
        return store

    def _open(self):
        from fdbqueue.engine.embedded.store import Store

        return Store.open(self._path, self._options)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self) -> None:
        with self._lock:
            store, self._opened = self._opened, None
        if store is not None:
            store.close()

    @property
    def options(self):
        return DatabaseOptions(self)

    def _set_option(self, code: int, param: bytes | None) -> None:
        if code == 800:
            raise Unsupported("use_config_database")
        if code in DEFAULT_FOR:
            self._defaults.append((DEFAULT_FOR[code], param))
        elif code == 20:
            self._max_watches = number(param, 0, 1_000_000)

    def create_transaction(self) -> Transaction:
        return Transaction(self)

    def open_tenant(self, name):
        raise Unsupported("open_tenant")

    def _run(self, body: Callable[[Transaction], Any]) -> Any:
        tr = self.create_transaction()
        while True:
            try:
                result = body(tr)
                tr.commit().wait()
                return result
            except FDBError as error:
                tr.on_error(error).wait()

    def get(self, key):
        return self._run(lambda tr: tr[key].value)

    def __getitem__(self, key):
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=(key.step == -1))
        return self.get(key)

    def get_key(self, key_selector):
        return self._run(lambda tr: tr.get_key(key_selector).value)

    def get_range(self, begin, end, limit=0, reverse=False, streaming_mode=StreamingMode.want_all):
        return self._run(lambda tr: tr.get_range(begin, end, limit, reverse, streaming_mode).to_list())

    def get_range_startswith(self, prefix, *args, **kwargs):
        return self._run(lambda tr: tr.get_range_startswith(prefix, *args, **kwargs).to_list())

    def set(self, key, value):
        self._run(lambda tr: tr.set(key, value))

    __setitem__ = set

    def clear(self, key):
        self._run(lambda tr: tr.clear(key))

    def clear_range(self, begin, end):
        self._run(lambda tr: tr.clear_range(begin, end))

    def __delitem__(self, key):
        self._run(lambda tr: tr.__delitem__(key))

    def clear_range_startswith(self, prefix):
        self._run(lambda tr: tr.clear_range_startswith(prefix))

    def get_and_watch(self, key):
        def body(tr):
            v = tr.get(key)
            return v, tr.watch(key)

        return self._run(body)

    def set_and_watch(self, key, value):
        def body(tr):
            tr.set(key, value)
            return tr.watch(key)

        return self._run(body)

    def clear_and_watch(self, key):
        def body(tr):
            del tr[key]
            return tr.watch(key)

        return self._run(body)

    def _atomic_operation(self, opcode, key, param):
        self._run(lambda tr: tr._atomic_operation(opcode, key, param))


for _name, _code in OPERATIONS.items():
    setattr(Database, _name, _operation(_code))
    setattr(Database, f"bit_{_name}", _operation(_code))


def open_file(path: str, *, options: Mapping[str, str]) -> Database:
    return Database(os.path.abspath(path), options)


def open_memory(*, options: Mapping[str, str]) -> Database:
    return Database(None, options)
