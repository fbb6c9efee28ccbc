"""The cluster engine: the official binding, opened in the process that uses it. Only this file imports all of it.

A process has one client of the binding. It does not survive a fork, because its network thread does not run in the
child. A forked child that uses the database loads a second copy of the client library, with a clean state, and a fresh
copy of the binding's modules. Objects from before the fork keep the old modules, and are refused in the child.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.engine.api import Bytes, Callback, Future, Key
from fdbqueue.engine.blocking import wake_all
from fdbqueue.engine.errors import ANSWER_SECONDS, TRANSACTION_TIMED_OUT, ClusterError, FDBError, adopt_binding
from fdbqueue.engine.steps import wait_in_thread
from fdbqueue.engine.waiting import Promise

API_VERSION = 730
_NO_CLUSTER_FILE = 2104
DEFAULT_CLUSTER_FILES = (
    "./fdb.cluster",
    "/etc/foundationdb/fdb.cluster",
    "/usr/local/etc/foundationdb/fdb.cluster",
)

_lock = threading.RLock()
_binding: Any = None
_binding_pid = 0


class ClusterDatabase:
    """A FoundationDB cluster. Each process that uses it connects once, at first use.

    It has all methods of the binding's ``fdb.Database``, and pickles as the path of its cluster file.

    Args:
        cluster_file: Path of the cluster file; None searches the same places that the client library searches.

    Raises:
        ClusterError: at first use, within seconds: no client library, no cluster file, no answer, or a client library
            that is too old. The message names the remedy.
    """

    def __init__(self, cluster_file: str | None = None) -> None:
        self._cluster_file = cluster_file
        self.answer_s = ANSWER_SECONDS  # how long the first use waits for the cluster
        self._raw: Any = None
        self._pid = 0
        self._closed = False
        self._answer: _FirstAnswer | None = None

    def check_cluster_file(self) -> None:
        """Look for the cluster file, without a connection.

        Raises:
            ClusterError: there is none.
        """
        _find_cluster_file(self._cluster_file)

    @property
    def db(self) -> Any:
        """The binding's database, which its transactions have as `db`; this object before its first use."""
        return self._raw if self._pid == os.getpid() else self

    def create_transaction(self) -> Any:
        """Return a new transaction of the binding.

        A process's first use waits until the cluster answers, for up to five seconds. In an event loop call
        ``await asyncio.to_thread(db.create_transaction)``, or a verb's `aio` first.
        """
        return self._database().create_transaction()

    def first_answer(self) -> Future[None] | None:
        """Return a future of this process's first use, or None after it: `create_transaction` waits for that answer.

        An event loop awaits the future first, and so is not blocked. It raises what the first use raises.
        """
        if self._pid == os.getpid():
            return None
        answer = self._answer
        if answer is None or answer.pid != os.getpid() or answer.is_ready():
            answer = self._answer = _FirstAnswer(self)
        return answer

    def close(self) -> None:
        """Close this database object: every later use raises ClusterError. The binding itself stays loaded.

        A call of this library that waits for a change, as a dequeue does, raises ClusterError too. Watches of your own
        go on: the binding can't end them.
        """
        self._raw = None
        self._pid = 0
        self._closed = True
        wake_all()

    def __enter__(self) -> ClusterDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ClusterDatabase({self._cluster_file!r})"

    def __reduce__(self) -> tuple[Callable[..., ClusterDatabase], tuple[str | None]]:
        return (ClusterDatabase, (self._cluster_file,))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._database(), name)

    def __getitem__(self, key: Key | slice) -> Any:
        return self._database()[key]

    def __setitem__(self, key: Key, value: Bytes) -> None:
        self._database()[key] = value

    def __delitem__(self, key: Key | slice) -> None:
        del self._database()[key]

    def _database(self) -> Any:
        if self._pid == os.getpid():
            return self._raw
        with _lock:
            if self._closed:
                raise ClusterError(f"{self!r} was closed. Call fdbqueue.open again for another one.")
            if self._pid != os.getpid():
                path = _find_cluster_file(self._cluster_file)
                raw = _open(path, self.answer_s)
                if self._raw is not None:
                    _inherited.append(self._raw)
                self._raw = raw
                self._pid = os.getpid()
        return self._raw


class _FirstAnswer(Promise):
    """The first use of a cluster: in this thread by `wait`, and in a thread of its own for an event loop."""

    __slots__ = ("_begun", "_db", "_error", "pid")

    def __init__(self, db: ClusterDatabase) -> None:
        super().__init__()
        self.pid = os.getpid()
        self._db = db
        self._begun = threading.Lock()  # the first callback takes it for good, so that one thread begins
        self._error: Exception | None = None

    def on_ready(self, callback: Callback) -> None:
        super().on_ready(callback)
        if self._begun.acquire(blocking=False):
            threading.Thread(target=self._open, daemon=True, name="fdbqueue's first use of a cluster").start()

    def wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._db._database()

    def _open(self) -> None:
        try:
            self._db._database()
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
        self.keep()


_inherited: list[Any] = []
"""Databases from before a fork. A child never closes them: their network thread does not run there."""


class _ParentsLibrary:
    """The client library for a parent's objects in a forked child, where the library answers nothing any more.

    Answers that had come before the fork are there. Any other use raises. Nothing is freed: a thread of the parent may
    have held the library's locks.
    """

    def __init__(self, library: object, parent: int) -> None:
        self._library = library
        self._parent = parent

    def __getattr__(self, name: str) -> Any:
        if name.endswith(("_destroy", "_cancel", "_release_memory")):
            return _nothing
        if name.startswith(("fdb_future_is", "fdb_future_get", "fdb_future_block")):
            return getattr(self._library, name)
        raise ClusterError(
            f"This transaction or future is from before a fork, of process {self._parent}. The cluster's client"
            " does not run on in a forked child. Make a new transaction in the child: db.create_transaction() of what"
            " fdbqueue.open returned connects there again."
        )


def _nothing(*_: object) -> None:
    """Do nothing, in place of a call that only frees something."""


def _refuse_parents_objects() -> None:
    """Refuse the parent's transactions and futures in a forked child. Their calls would wait forever."""
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held the old one
    base = getattr(getattr(_binding, "impl", None), "_FDBBase", None)
    if base is not None and not isinstance(base.capi, _ParentsLibrary):
        base.capi = _ParentsLibrary(base.capi, _binding_pid)


os.register_at_fork(after_in_child=_refuse_parents_objects)


def _find_cluster_file(given: str | None) -> str:
    named = given or os.environ.get("FDB_CLUSTER_FILE")
    if named:
        if os.path.isfile(named):
            return named
        raise ClusterError(
            f"There is no cluster file {named!r}. Give the path of one as fdb:PATH or in FDB_CLUSTER_FILE, copied from"
            " a machine of the cluster (there it is /etc/foundationdb/fdb.cluster)."
        )
    for path in DEFAULT_CLUSTER_FILES:
        if os.path.isfile(path):
            return path
    raise ClusterError(
        f"No cluster file was given, and there is none at {', '.join(DEFAULT_CLUSTER_FILES)}. Give its path as"
        " fdb:PATH or in FDB_CLUSTER_FILE; `docker compose up -d fdb` starts a cluster and docs/guides/engines.md says"
        " how to reach it. Without a cluster, memory: and file:PATH work as they are."
    )


def _load_binding() -> Any:
    global _binding, _binding_pid
    if _binding_pid == os.getpid():
        return _binding
    if _binding is None and not _network_runs():
        binding = import_binding()
    elif _binding is None:
        binding = sys.modules["fdb"]
    else:
        binding = _import_fresh_binding()
    adopt_binding()
    _binding, _binding_pid = binding, os.getpid()
    return binding


def _open(path: str, answer_s: float) -> Any:
    binding = _load_binding()
    try:
        raw = binding.open(path)
        expect_answer(raw, path, answer_s)
    except FDBError as error:
        if error.code != _NO_CLUSTER_FILE:
            raise
        raise ClusterError(
            f"{path!r} is not a cluster file. A cluster file is one line such as"
            " shop:x7f@10.0.0.4:4500,10.0.0.5:4500. Copy it from a machine of the cluster"
            " (there it is /etc/foundationdb/fdb.cluster)."
        ) from error
    return raw


def _network_runs() -> bool:
    impl = sys.modules.get("fdb.impl")
    thread = getattr(impl, "_network_thread", None)
    return thread is not None and thread.is_alive()


def import_binding() -> Any:
    import fdb

    if fdb.is_api_version_selected():
        return fdb  # a process has only one version, and this one has chosen; `adopt_binding` checks it
    try:
        fdb.api_version(API_VERSION)
    except (RuntimeError, AttributeError) as error:  # it is older, or lacks functions that a newer one has no more
        version = _binding_version()
        raise ClusterError(
            f"The FoundationDB client library does not fit the Python package foundationdb {version}: {error} Install"
            f" the client package (foundationdb-clients) {version}, or the Python package foundationdb 7.3, which takes"
            " newer libraries too: pip install 'foundationdb==7.3.*'."
        ) from error
    except Exception as error:
        reason = error.__context__ or error  # the loader's own error: the binding's says only that it found none
        raise ClusterError(
            "The FoundationDB client library can't be loaded"
            f" ({reason}). Install the package foundationdb-clients {_binding_version()}, or point LD_LIBRARY_PATH at"
            " the folder of libfdb_c.so. Without a cluster, memory: and file:PATH work as they are."
        ) from error
    return fdb


def _binding_version() -> str:
    """Return the version of the installed binding, as 7.3: the client library must be of that one, or newer."""
    return ".".join(importlib.metadata.version("foundationdb").split(".")[:2])


def _import_fresh_binding() -> Any:
    library = _library_path()
    if library is None:
        raise ClusterError(
            "This process was forked from one that had opened the cluster, and the path of the client library can't be"
            " found to load a second copy. Start processes with multiprocessing's spawn method, or open after forking."
        )
    # Keep the tuple layer's modules: they have no state, and other modules have imported their classes.
    kept = {name: sys.modules[name] for name in ("fdb.tuple", "fdb.subspace_impl", "fdb.six") if name in sys.modules}
    for name in [name for name in sys.modules if name == "fdb" or name.startswith("fdb.")]:
        if name not in kept:
            del sys.modules[name]
    real = ctypes.CDLL
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(library, pathlib.Path(folder) / "libfdb_c.so")
        ctypes.CDLL = lambda *_, **__: real(str(copy))  # type: ignore[assignment, misc]
        try:
            binding = importlib.import_module("fdb")
            for name, module in kept.items():
                setattr(binding, name.removeprefix("fdb."), module)
            binding.api_version(API_VERSION)
        finally:
            ctypes.CDLL = real  # type: ignore[misc]
    return binding


@functools.cache  # a child's copy has no path any more, when its own child asks
def _library_path() -> str | None:
    """Return the path of the binding's own client library. The process may have loaded more, of other versions."""
    place = (ctypes.c_void_p * 4)()  # a Dl_info: first the name of the file
    function = ctypes.cast(_binding.impl._capi.fdb_get_max_api_version, ctypes.c_void_p)
    found = ctypes.CDLL(None).dladdr(function, place)
    path = ctypes.string_at(place[0] or b"").decode() if found else ""
    return path if os.path.isfile(path) else None


def expect_answer(raw: Any, path: str, answer_s: float) -> None:
    tr = raw.create_transaction()
    tr.options.set_timeout(round(answer_s * 1000))
    try:
        while True:
            try:
                wait_in_thread(tr.get_read_version())
                return
            except FDBError as error:  # 1039 with several client libraries: the client has found the one that fits
                wait_in_thread(tr.on_error(error))
    except FDBError as error:
        if error.code != TRANSACTION_TIMED_OUT:
            raise
        servers = _other_version(raw)
        if servers is not None:
            raise ClusterError(
                f"The servers of {path!r} are FoundationDB {servers}, and the client library of this process is not."
                f" Install the package foundationdb-clients {servers}, or name its libfdb_c.so as a second library in"
                " FDB_NETWORK_OPTION_EXTERNAL_CLIENT_LIBRARY (docs/guides/engines.md)."
            ) from error
        raise ClusterError(
            f"The cluster of {path!r} did not answer within {answer_s:g} s. Look whether it runs"
            f" and can be reached: fdbcli -C {path} --exec status. A client library of another version gets no answer"
            " either."
        ) from error


def _other_version(raw: Any) -> str | None:
    """Return the version of servers that answer in a protocol which no client library of this process speaks."""
    status = json.loads(bytes(raw.get_client_status().wait()))
    for server in status.get("DatabaseStatus", status).get("Connections", ()):
        protocol = re.match("fdb00b0(.)(.)", server.get("ProtocolVersion", ""))
        if protocol and not server["Compatible"]:
            return ".".join(protocol.groups())
    return None
