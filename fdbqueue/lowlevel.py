"""What layers are made with, beside the public names of `fdbqueue`: a layer imports these two modules and no other.

A layer of your own uses exactly this; docs/guides/own-layer.md shows one. The names are stable within a minor version.
They come from the queue and the engine, where their docstrings are.
"""

from __future__ import annotations

from fdbqueue.adaptive_limit import AdaptiveLimit
from fdbqueue.arrivals import announce, announces, arrivals_since, arrivals_until, span_of, wants_arrivals
from fdbqueue.browse import Browser, Pace, Pages, pages
from fdbqueue.check import CLAIMED, items_of_all_places
from fdbqueue.claimed import ClaimedBatch, claimed_places
from fdbqueue.codecs import CODEC_ERRORS, UNREADABLE, V
from fdbqueue.engine.api import Database, Future, KeyValue, ReadTransaction, Transaction
from fdbqueue.engine.errors import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    TOO_MANY_WATCHES,
    TRANSACTION_TIMED_OUT,
    TRANSACTION_TOO_LARGE,
    TRANSACTION_TOO_OLD,
    FDBError,
    leaves_in_doubt,
    predicates,
)
from fdbqueue.engine.keys import Subspace, Versionstamp, strinc
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.manysets import set_rows
from fdbqueue.engine.steps import Steps, finished, pause, rows, run, run_async, started, wait_in_thread, within
from fdbqueue.engine.transactional import attempts, is_database, only_database, only_transaction
from fdbqueue.errors import FormatError
from fdbqueue.exclusive import keep_out, made_exclusive
from fdbqueue.items import (
    NO_NOTES,
    Envelope,
    Item,
    Notes,
    check_values,
    chunks_of,
    envelope,
    envelope_without_notes,
    has_notes,
    headers_of,
    is_chunked,
    join_chunks,
    kept_size_of,
    notes_of,
    parse,
    size_of,
    with_notes,
)
from fdbqueue.layout import (
    DELAY,
    LEASE,
    RANDOM_BYTES,
    TAKEN,
    TTL,
    Layout,
    Name,
    Place,
    level_range,
    new_random,
    pack,
    rank_of,
)
from fdbqueue.order import MAX_RANK
from fdbqueue.stats import COUNTED_RANKS, count, count_levels, read_counts, read_level_counts, read_stats
from fdbqueue.tail import LastIndex, give_up_to, raise_tail, read_tail
from fdbqueue.verbs import verb

__all__ = [
    "CLAIMED",
    "CODEC_ERRORS",
    "COMMIT_UNKNOWN_RESULT",
    "COUNTED_RANKS",
    "DELAY",
    "LEASE",
    "MAX_RANK",
    "NOT_COMMITTED",
    "NO_NOTES",
    "RANDOM_BYTES",
    "TAKEN",
    "TOO_MANY_WATCHES",
    "TRANSACTION_TIMED_OUT",
    "TRANSACTION_TOO_LARGE",
    "TRANSACTION_TOO_OLD",
    "TTL",
    "UNREADABLE",
    "AdaptiveLimit",
    "Browser",
    "ClaimedBatch",
    "Database",
    "Envelope",
    "FDBError",
    "FormatError",
    "Future",
    "Item",
    "KeyValue",
    "LastIndex",
    "Layout",
    "Name",
    "Notes",
    "Pace",
    "Pages",
    "Place",
    "ReadTransaction",
    "Steps",
    "Subspace",
    "Transaction",
    "V",
    "Versionstamp",
    "announce",
    "announces",
    "arrivals_since",
    "arrivals_until",
    "attempts",
    "check_values",
    "chunks_of",
    "claimed_places",
    "count",
    "count_levels",
    "envelope",
    "envelope_without_notes",
    "fdb_tuple",
    "finished",
    "give_up_to",
    "has_notes",
    "headers_of",
    "is_chunked",
    "is_database",
    "items_of_all_places",
    "join_chunks",
    "keep_out",
    "kept_size_of",
    "leaves_in_doubt",
    "level_range",
    "made_exclusive",
    "new_random",
    "notes_of",
    "only_database",
    "only_transaction",
    "pack",
    "pages",
    "parse",
    "pause",
    "predicates",
    "raise_tail",
    "rank_of",
    "read_counts",
    "read_level_counts",
    "read_stats",
    "read_tail",
    "rows",
    "run",
    "run_async",
    "set_rows",
    "size_of",
    "span_of",
    "started",
    "strinc",
    "verb",
    "wait_in_thread",
    "wants_arrivals",
    "with_notes",
    "within",
]
