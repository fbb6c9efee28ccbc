"""fdbqueue: a transactional ordered-key queue over FoundationDB, or over a folder of your laptop.

Begin with `open` and `Queue`. `transactional` puts a queue's calls and your own reads and writes into one transaction.
`fdbqueue.layers` has the rest: leases, waiting, priorities, subscriptions and so on (``help("fdbqueue.layers")``).

General layout
--------------
`engine/` (LEVEL 0) provides ordered keys and transactions. It knows no queue. `open` returns a database of either
engine: the embedded one (`engine/embedded`) or a cluster (`engine/cluster.py`). Both have the official binding's own
interface.

These folders (LEVEL 1) are the queue, the lower ones first: `base/` has small things that all use. `stored/` has the
keys and the bytes under them: begin with `stored/key_table.py`. `moves/` has what may happen to an item. `writes/` and
`reads/` are the ways in, and the ways to look. `arrow/` does both with columns. `verbs/` is what a user calls: begin
with `verbs/queue.py`. Each folder opens with a page of its own. Code that may wait is written as generators of futures
(`engine/steps.py`), so that blocking and asyncio callers run the same code.

`layers/` (LEVEL 2) builds on the public names here, one recipe a folder. `spark/` and `cli/` (LEVEL 3) build on both.
Nothing here imports them. Of the queue's own modules some are imported at first use: see `_LATER`.
"""

# isort: off
import fdbqueue.base.starting  # noqa: F401  # first: the rest takes a tenth of a second, and Ctrl-C may come meanwhile
# isort: on

import importlib
from typing import TYPE_CHECKING, Any

from fdbqueue.base.position import BulkReport, Position
from fdbqueue.engine import Database, FDBError, Subspace, Transaction, aio, transactional
from fdbqueue.engine import open as open  # not in __all__: a star import must not hide Python's own
from fdbqueue.engine.verb import ELSEWHERE
from fdbqueue.errors import (
    BulkInterrupted,
    CheckFailed,
    ChecksBypassed,
    ClusterError,
    CodecError,
    CompletionError,
    FdbQueueError,
    FormatError,
    GroupError,
    ItemTooLarge,
    LeaseLost,
    NestedQueue,
    OrderError,
    OtherCodec,
    QueueFull,
    QueuePaused,
    QueueRenamed,
    ScanTooLarge,
    SelectorError,
    SessionClosed,
    StorageError,
    StreamError,
    SubscriptionError,
    UnknownQueue,
    UploadLost,
    UrlError,
)
from fdbqueue.stored.codecs import Codec, JsonCodec, MsgpackCodec
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.items import Item
from fdbqueue.stored.order import Order
from fdbqueue.stored.places import StoredItem
from fdbqueue.stored.settings import Pause, Quota
from fdbqueue.verbs.queue import Queue
from fdbqueue.verbs.queues import QueueInfo, find_queues, queues

if TYPE_CHECKING:
    from fdbqueue.observe.troubles import troubles
    from fdbqueue.reads.check import CheckReport
    from fdbqueue.reads.trouble import Trouble
    from fdbqueue.verbs.checking import check
    from fdbqueue.verbs.renaming import RenameReport, rename

__version__ = "0.2.0"

ELSEWHERE.update(
    {
        "enqueue": {
            **dict.fromkeys(("delay", "at", "ttl", "headers"), "Leases(queue).{verb}"),
            **dict.fromkeys(("headers_column", "delay_column", "ttl_column"), "Leases(queue).{verb}"),
            **dict.fromkeys(("priority", "priority_column"), "PriorityQueue(queue).{verb}"),
            "immediate": "Subscriptions(queue).enqueue",
            **dict.fromkeys(("session", "level"), "Sessions(queue).{verb}"),
        },
        "dequeue": {
            "timeout": "StagedQueue(queue).{verb}",
            "limit": "dequeue_many",
            **dict.fromkeys(("duration", "consumer"), "Leases(queue).lease"),
        },
        "lease": {"timeout": "StagedQueue(queue).{verb}", "limit": "lease_many"},
        "fetch": {"limit": "fetch_many"},
    }
)

_LATER = {
    "CheckReport": "reads.check",
    "RenameReport": "verbs.renaming",
    "Trouble": "reads.trouble",
    "check": "verbs.checking",
    "rename": "verbs.renaming",
    "troubles": "observe.troubles",
}
"""Names of operators, with their modules. A program that only uses queues does not pay for their import."""

__all__ = [
    "BulkInterrupted",
    "BulkReport",
    "CheckFailed",
    "CheckReport",
    "ChecksBypassed",
    "ClusterError",
    "Codec",
    "CodecError",
    "CompletionError",
    "Database",
    "FDBError",
    "FdbQueueError",
    "FormatError",
    "GroupError",
    "Item",
    "ItemTooLarge",
    "JsonCodec",
    "LeaseLost",
    "MsgpackCodec",
    "NestedQueue",
    "Order",
    "OrderError",
    "OtherCodec",
    "Pause",
    "Position",
    "Queue",
    "QueueFull",
    "QueueInfo",
    "QueuePaused",
    "QueueRenamed",
    "Quota",
    "RenameReport",
    "ScanTooLarge",
    "SelectorError",
    "SessionClosed",
    "Stats",
    "StorageError",
    "StoredItem",
    "StreamError",
    "SubscriptionError",
    "Subspace",
    "Transaction",
    "Trouble",
    "UnknownQueue",
    "UploadLost",
    "UrlError",
    "__version__",
    "aio",
    "check",
    "find_queues",
    "queues",
    "rename",
    "transactional",
    "troubles",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
