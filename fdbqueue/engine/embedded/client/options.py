"""Transaction and database options: the binding's names and arguments, and their effects.

Some options only control a cluster's machines (priorities, tags, tracing, caches, addresses). They have no effect
here, but their values are checked as in the binding and FoundationDB's client. ``UNSUPPORTED`` names the few features
that a program could observe and that the embedded engine lacks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Final

from fdb.fdboptions import DatabaseOption, TransactionOption

from fdbqueue.engine.errors import FDBError, FdbQueueError

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.database import Database
    from fdbqueue.engine.embedded.client.transaction import Transaction

TRANSACTION_OPTIONS: Final[Mapping[str, tuple[int, str, type, str | None]]] = TransactionOption
DATABASE_OPTIONS: Final[Mapping[str, tuple[int, str, type, str | None]]] = DatabaseOption
"""The binding's options: number, description, and the type and meaning of the argument, by name."""

DEFAULT_FOR: Final = {
    405: 405, 500: 500, 501: 501, 502: 502, 503: 503, 504: 20, 505: 23, 506: 505, 700: 1100, 701: 701, 702: 712,
}  # fmt: skip
"""Database options that set an option of each later transaction."""

READ_YOUR_WRITES_DISABLE: Final = 51
INITIALIZE_NEW_DATABASE: Final = 300
MAX_WATCHES: Final = 20
MOST: Final = {10: 2**31 - 1, MAX_WATCHES: 1_000_000, 900: 100}
"""The database's own numeric options, and the largest value of each. The smallest is 0."""
TIMEOUT: Final = 500
SNAPSHOT_RYW: Final = {26: 600, 27: 601}
"""Database options that count up and down, as the transaction's options do."""
USE_CONFIG_DATABASE: Final = 800

PERSISTENT: Final = frozenset({500, 501, 502, 2000})
"""Transaction options that outlive `on_error`; `reset` forgets them too."""

INT_MAX: Final = 2**31 - 1
SIZE_LIMIT: Final = 10_000_000

# A span begins with the protocol version of its writer. The 7.3 client reads versions in this range.
_PROTOCOL_MASK: Final = (1 << 60) - 1
_OLDEST_PROTOCOL: Final = 0x0FDB00A200060001
_FUTURE_PROTOCOL: Final = 0x0FDB00B075000000

UNSUPPORTED: Final = {
    "use_config_database": "the embedded engine has no configuration database",
    "open_tenant": "the embedded engine has no tenants",
    "get_client_status": "the embedded engine has no connection",
}


class Unsupported(FDBError):
    """The embedded engine lacks a feature that a cluster has."""

    def __init__(self, what: str) -> None:
        super().__init__(2108)
        self.what = what

    @property
    def description(self) -> str:
        return f"{self.what} is not supported: {UNSUPPORTED.get(self.what, 'the embedded engine lacks it')}"

    __reduce__ = FdbQueueError.__reduce__


class Settings:
    """The values of a transaction's options, at first FoundationDB's defaults."""

    __slots__ = (
        "bypass_unreadable",
        "error",
        "identifier",
        "lock_aware",
        "max_delay",
        "odd",
        "protected",
        "quiet_next",
        "raw",
        "read_only",
        "read_system",
        "relaxed",
        "report_conflicts",
        "retry_limit",
        "risky",
        "ryw_disabled",
        "size_limit",
        "snapshot_ryw",
        "tags",
        "timeout",
        "write_special",
        "write_system",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bypass_unreadable = False
        self.error = 0
        self.odd = False
        self.identifier = b""
        self.lock_aware = False
        self.max_delay = 1.0
        self.protected = True
        self.quiet_next = False
        self.raw = False
        self.read_only = False
        self.read_system = False
        self.relaxed = False
        self.report_conflicts = False
        self.retry_limit = -1
        self.risky = False
        self.ryw_disabled = False
        self.size_limit = SIZE_LIMIT
        self.snapshot_ryw = 1
        self.tags: frozenset[bytes] = frozenset()
        self.timeout = 0.0
        self.write_special = False
        self.write_system = False

    def copy(self) -> Settings:
        other = object.__new__(Settings)
        for name in Settings.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def _look(self) -> None:
        """Set `odd`: whether reads and writes must check any of these options."""
        self.odd = bool(
            self.bypass_unreadable
            or self.error
            or self.quiet_next
            or self.read_system
            or self.ryw_disabled
            or self.snapshot_ryw <= 0
            or self.timeout
            or self.write_system
        )

    def see_own_writes(self, count: int) -> None:
        """Set `snapshot_ryw`: enable calls minus disable calls. Above 0, snapshot reads see own writes."""
        self.snapshot_ryw = count
        self._look()

    def try_set(self, code: int, param: bytes | None) -> None:
        """Set option number `code`. On an error, fail the transactions that have these settings."""
        try:
            self.set(code, param)
        except FDBError as error:
            self.refuse(error.code)

    def refuse(self, code: int) -> None:
        """Fail every operation of the transactions that have these settings."""
        self.error = self.error or code
        self._look()

    def set(self, code: int, param: bytes | None) -> None:
        """Set option number `code`.

        Raises:
            FDBError: 2006 for an invalid value, 2000 or 2007 if the option is not allowed here.
        """
        if code in _SETTERS:
            _SETTERS[code](self, param)
            self._look()
        elif code in _BARE and param is not None:
            raise FDBError(2006)


def number(param: bytes | None, least: int, most: int) -> int:
    """Decode an integer option."""
    if param is None or len(param) != 8:
        raise FDBError(2006)
    value: int = struct.unpack("<q", param)[0]
    if not least <= value <= most:
        raise FDBError(2006)
    return value


def _assign(name: str, value: object) -> Callable[[Settings, bytes | None], None]:
    def setter(settings: Settings, param: bytes | None) -> None:
        if param is not None:
            raise FDBError(2006)
        setattr(settings, name, value)

    return setter


def _timeout(settings: Settings, param: bytes | None) -> None:
    settings.timeout = number(param, 0, INT_MAX) / 1000


def _retry_limit(settings: Settings, param: bytes | None) -> None:
    settings.retry_limit = number(param, -1, INT_MAX)


def _max_delay(settings: Settings, param: bytes | None) -> None:
    settings.max_delay = number(param, 0, INT_MAX) / 1000


def _size_limit(settings: Settings, param: bytes | None) -> None:
    settings.size_limit = number(param, 32, SIZE_LIMIT)


def _snapshot_ryw(step: int) -> Callable[[Settings, bytes | None], None]:
    def setter(settings: Settings, _param: bytes | None) -> None:
        settings.snapshot_ryw += step

    return setter


def _system_keys(write: bool) -> Callable[[Settings, bytes | None], None]:
    def setter(settings: Settings, _param: bytes | None) -> None:
        settings.raw = settings.read_system = True
        settings.write_system = settings.write_system or write

    return setter


def _lock_aware(settings: Settings, _param: bytes | None) -> None:
    settings.lock_aware, settings.read_only = True, False


def _read_lock_aware(settings: Settings, _param: bytes | None) -> None:
    settings.read_only = settings.read_only or not settings.lock_aware
    settings.lock_aware = True


def _identifier(settings: Settings, param: bytes | None) -> None:
    if param is None or not 0 < len(param) <= 100:
        raise FDBError(2006)
    if settings.identifier and settings.identifier != param:
        raise FDBError(2000)
    settings.identifier = param


def _log(settings: Settings, _param: bytes | None) -> None:
    if not settings.identifier:
        raise FDBError(2000)


def _field_length(_settings: Settings, param: bytes | None) -> None:
    if number(param, -1, INT_MAX) == 0:
        raise FDBError(2006)


def _tag(settings: Settings, param: bytes | None) -> None:
    if param is None:
        raise FDBError(2006)
    if len(param) > 255:
        raise FDBError(2110)
    if len(settings.tags) >= 5:  # a tag that is set already counts too
        raise FDBError(2109)
    settings.tags |= {param}


def _span(_settings: Settings, param: bytes | None) -> None:
    if param is None or len(param) != 33:
        raise FDBError(2006)
    protocol = int.from_bytes(param[:8], "little") & _PROTOCOL_MASK
    if not _OLDEST_PROTOCOL <= protocol < _FUTURE_PROTOCOL:
        raise FDBError(2100)


def _no_grv_cache(_settings: Settings, _param: bytes | None) -> None:
    raise FDBError(2007)


_SETTERS: Final[dict[int, Callable[[Settings, bytes | None], None]]] = {
    10: _assign("risky", True),
    30: _assign("quiet_next", True),
    51: _assign("ryw_disabled", True),
    301: _system_keys(write=True),
    302: _system_keys(write=False),
    303: _assign("raw", True),
    403: _identifier,
    402: _identifier,
    404: _log,
    405: _field_length,
    500: _timeout,
    501: _retry_limit,
    502: _max_delay,
    503: _size_limit,
    600: _snapshot_ryw(1),
    601: _snapshot_ryw(-1),
    700: _lock_aware,
    701: _assign("protected", False),
    702: _read_lock_aware,
    712: _assign("report_conflicts", True),
    713: _assign("relaxed", True),
    714: _assign("write_special", True),
    800: _tag,
    801: _tag,
    900: _span,
    1100: _assign("bypass_unreadable", True),
    1101: _no_grv_cache,
}
_BARE: Final = {code for code, _, kind, _ in TRANSACTION_OPTIONS.values() if kind is NoneType} - _SETTERS.keys()


class TransactionOptions:
    """``tr.options``: one method ``set_…`` per option."""

    __slots__ = ("_parent",)

    def __init__(self, tr: Transaction) -> None:
        self._parent = tr

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...


class DatabaseOptions:
    """``db.options``: one method ``set_…`` per option."""

    __slots__ = ("_parent",)

    def __init__(self, db: Database) -> None:
        self._parent = db

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...


def _text(param: object) -> bytes | None:
    if param is None:
        return None
    if hasattr(param, "as_foundationdb_value"):
        param = param.as_foundationdb_value()
    if not isinstance(param, bytes) and hasattr(param, "encode"):
        param = param.encode("utf8")
    if not isinstance(param, bytes):
        raise TypeError("Parameter must be a string")
    return param


def _bytes(param: object) -> bytes | None:
    if param is not None and not isinstance(param, bytes):
        raise TypeError("Value must be of type bytes")
    return param


def _setter(code: int, kind: type) -> Callable[..., None]:
    """Return the method that sets an option, whose argument has that type."""
    if kind is NoneType:
        return lambda self: self._parent._set_option(code, None)
    if kind is int:
        return lambda self, param: self._parent._set_option(code, struct.pack("<q", param))
    convert = _bytes if kind is bytes else _text
    return lambda self, param=None: self._parent._set_option(code, convert(param))


for _owner, _options in ((TransactionOptions, TRANSACTION_OPTIONS), (DatabaseOptions, DATABASE_OPTIONS)):
    for _name, _row in _options.items():
        setattr(_owner, f"set_{_name}", _setter(_row[0], _row[2]))
