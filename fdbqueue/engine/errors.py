"""FoundationDB's error, codes and predicates, the same on both engines; and what can be wrong with an engine itself.

The embedded engine raises `FDBError` itself. When the cluster engine loads the official binding, it makes this class a
base of the binding's own `fdb.FDBError`. So one ``except FDBError`` catches both (docs/adr/0005).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

OLDEST_API_VERSION = 630
"""The oldest tested API version of the binding. Very old ones encode versionstamps differently."""

NOT_COMMITTED = 1020
COMMIT_UNKNOWN_RESULT = 1021
FUTURE_NOT_READY = 2015
TRANSACTION_TOO_OLD = 1007
FUTURE_VERSION = 1009
TRANSACTION_CANCELLED = 1025
TRANSACTION_TIMED_OUT = 1031
TOO_MANY_WATCHES = 1032
TRANSACTION_TOO_LARGE = 2101

DESCRIPTIONS = {
    1000: "Operation failed",
    1004: "Operation timed out",
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1026: "Network connection failed",
    1029: "Watch cancelled because storage server watch limit exceeded",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1039: "The protocol version of the cluster has changed",
    1042: "CommitProxy commit memory limit exceeded",
    1043: "Operation no longer supported due to shutdown",
    1051: "Batch GRV request rate limit exceeded",
    1078: "GetReadVersion proxy memory limit exceeded",
    1100: "Broken promise",
    1101: "Asynchronous operation cancelled",
    1102: "Future has been released",
    1213: "Transaction tag is being throttled",
    1223: "Exceeded maximum proxy tag throttling duration",
    1500: "Platform error",
    1510: "Disk i/o operation failed",
    2000: "Invalid API call",
    2002: "Commit with incomplete read",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2007: "Option not valid in this context",
    2008: "Action not possible before the network is configured",
    2009: "Network can be configured only once",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2015: "Future not ready",
    2017: "Operation issued while a commit was outstanding",
    2018: "Unrecognized atomic mutation type",
    2020: "Transaction does not have a valid commit version",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2023: "Attempted to commit a transaction specified as read-only",
    2100: "Incompatible protocol version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2104: "Connection string invalid",
    2108: "Operation is not supported",
    2109: "Too many tags set on transaction",
    2110: "Tag set on transaction is too long",
    2112: "Special key space range read crosses modules. Refer to the `special_key_space_relaxed' transaction"
    " option for more details.",
    2113: "Special key space range read does not intersect a module. Refer to the `special_key_space_relaxed'"
    " transaction option for more details.",
    2114: "Special Key space is not allowed to write by default. Refer to the `special_key_space_enable_writes`"
    " transaction option for more details.",
    2115: "Special key space key or keyrange in set or clear does not intersect a module",
    2203: "API version not supported",
    2210: "EXACT streaming mode requires limits, but none were given",
    4000: "An unknown error occurred",
    4100: "An internal error occurred",
}
"""The meaning of each code, in FoundationDB's own words."""

_MAYBE_COMMITTED = frozenset({1021, 1039})
_RETRYABLE_NOT_COMMITTED = frozenset({1020, 1007, 1009, 1038, 1078, 1042, 1051, 1037, 1213, 1223})


class FdbQueueError(Exception):
    """The base of the library's own errors. All can be pickled and copied, with their attributes and notes."""

    def __reduce__(self: BaseException) -> tuple[object, ...]:
        # Exception's own calls the constructor with `args`, which are not the arguments of a class with attributes.
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    """Return an error of that class without a call of its constructor; its attributes are set next."""
    return kind.__new__(kind, *args)


class UrlError(FdbQueueError, ValueError):
    """The database URL is missing, or it is not ``memory:``, ``file:PATH`` or ``fdb:[CLUSTER_FILE]``."""


class StorageError(FdbQueueError):
    """The embedded engine's folder can't be used as asked: its disk, rights, format or contents."""


class ClusterError(FdbQueueError):
    """The cluster can't be used: no client library, no cluster file, no answer, or a client that is too old."""


class FDBError(Exception):
    """A FoundationDB error: `code` is its number, `description` its meaning.

    >>> from fdbqueue import FDBError
    >>> FDBError(1020)
    FDBError(1020)
    >>> str(FDBError(1007))
    'Transaction is too old to perform reads or be committed (1007)'
    """

    # Without empty slots, the layout would differ from Exception's, and the binding's class could not use it as a base.
    __slots__ = ()

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def description(self) -> str:
        return DESCRIPTIONS.get(self.code, "UNKNOWN_ERROR")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


class Predicates:
    """FoundationDB's error predicates. Each has the binding's name, with its prefix ``is_`` and without.

    >>> predicates.is_maybe_committed(FDBError(1021)), predicates.retryable_not_committed(FDBError(1021))
    (True, False)
    """

    def retryable(self, error: FDBError) -> bool:
        """Return whether the transaction can be retried."""
        return self.maybe_committed(error) or self.retryable_not_committed(error)

    def maybe_committed(self, error: FDBError) -> bool:
        """Return whether the commit may have taken effect although it failed."""
        return error.code in _MAYBE_COMMITTED

    def retryable_not_committed(self, error: FDBError) -> bool:
        """Return whether the transaction can be retried and certainly had no effect."""
        return error.code in _RETRYABLE_NOT_COMMITTED

    is_retryable = retryable
    is_maybe_committed = maybe_committed
    is_retryable_not_committed = retryable_not_committed


predicates = Predicates()
_NOT_WAITED_FOR = frozenset({TRANSACTION_CANCELLED, TRANSACTION_TIMED_OUT})


def leaves_in_doubt(error: BaseException) -> bool:
    """Return whether a commit that failed with `error` may have taken effect, or may still take effect.

    With 1021 the client has made sure that the commit is no longer in flight. After a timeout or a cancellation, it has
    not.

    >>> [leaves_in_doubt(FDBError(code)) for code in (1020, 1021, 1031)]
    [False, True, True]
    """
    if not isinstance(error, FDBError):
        return False
    return predicates.maybe_committed(error) or error.code in _NOT_WAITED_FOR


ANSWER_SECONDS = 5.0
"""How long people wait for a database that does not answer: at its first use, and for a page."""
NO_ANSWER = (
    "The database did not answer in time. Look whether its servers run, and whether this machine reaches them:"
    " fdbqueue health, fdbcli --exec status."
)
"""What to say of a database that does not answer."""


def text_of(error: BaseException) -> str:
    """Return the text of an error. The binding's own have their descriptions as bytes, and their `str` has a ``b'…'``.

    >>> text_of(FDBError(1020))
    'Transaction not committed due to conflict with another transaction (1020)'
    """
    if not isinstance(error, FDBError):
        return str(error)
    description: str | bytes = error.description
    text = description.decode() if isinstance(description, bytes) else description
    return f"{text} ({error.code})"


def told(error: BaseException) -> str:
    """Return an error as a sentence for people: of a database that does not answer, what to do."""
    if not isinstance(error, FDBError):
        return str(error)
    if error.code == TRANSACTION_TIMED_OUT:
        return NO_ANSWER
    return f"{text_of(error)}."


on_retry: list[Callable[[int], None]] = []
"""Called with the code of the error each time that an attempt is repeated; empty unless `fdbqueue.observe` counts."""


def note_retry(error: FDBError) -> None:
    """Note that an attempt is repeated after this error."""
    for told in on_retry:
        told(error.code)


def adopt_binding() -> None:
    """Make `FDBError` a base of the binding's own error class, if the binding is loaded in this process.

    Code that catches `FDBError` around a transaction calls this first, if the transaction may be the binding's. This
    cannot happen at import, because other code can load the binding at any time.

    Raises:
        ClusterError: other code has selected an API version at which reads and writes have another meaning.
    """
    binding = sys.modules.get("fdb.impl")
    error = getattr(binding, "FDBError", None)
    if error is not None and not issubclass(error, FDBError):
        fdb = sys.modules["fdb"]
        if fdb.is_api_version_selected() and (version := fdb.get_api_version()) < OLDEST_API_VERSION:
            raise ClusterError(
                f"This process has selected the API version {version} of FoundationDB, and queues want"
                f" {OLDEST_API_VERSION} or newer. Say fdb.api_version(730)."
            )
        error.__bases__ = (FDBError,)
