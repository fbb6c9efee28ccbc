"""The parts of layers. A layer imports this module and the public names of `fdbqueue`, and nothing else of it.

A layer of your own uses exactly this; docs/guides/own-layer.md shows one. The names are stable within a minor version.
They come from the queue and the engine, where their docstrings are.
"""

from __future__ import annotations

from fdbqueue.adaptive_limit import AdaptiveLimit
from fdbqueue.appending import append_items, write_chunks
from fdbqueue.arguments import check_borders, check_limit
from fdbqueue.arrivals import announce, announces, arrivals_since, arrivals_until, span_of, wants_arrivals
from fdbqueue.blobcheck import check_blobs
from fdbqueue.browse import Browser, Pace, Pages, pages
from fdbqueue.bulk import COMMITS_IN_FLIGHT
from fdbqueue.check import CLAIMED, check_queue, items_of_all_places
from fdbqueue.claimed import ClaimedBatch, claimed_places
from fdbqueue.codecs import CODEC_ERRORS, UNREADABLE, V
from fdbqueue.engine.api import Database, Future, KeyValue, ReadTransaction, Transaction
from fdbqueue.engine.closing import end_wait, wake_at_close
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
from fdbqueue.engine.set_rows import set_rows
from fdbqueue.engine.steps import Steps, finished, pause, rows, run, run_async, started, wait_in_thread, within
from fdbqueue.engine.transactional import attempts, is_database, only_database, only_transaction
from fdbqueue.errors import FormatError
from fdbqueue.exclusive import keep_out, made_exclusive
from fdbqueue.groups import (
    GroupRecord,
    begin_sweep,
    count_members,
    encode_group,
    end_member,
    group_keys,
    group_record,
    read_group,
    read_member_counts,
    settle,
)
from fdbqueue.high_water_mark import LastIndex, raise_high_water_mark, read_high_water_mark
from fdbqueue.items import (
    BLOB_ID_BYTES,
    CHUNK_BYTES,
    NO_NOTES,
    Blob,
    Envelope,
    Item,
    Notes,
    blob_of,
    check_values,
    chunks_of,
    envelope,
    envelope_without_notes,
    has_notes,
    has_parts,
    headers_of,
    is_chunked,
    join_chunks,
    kept_size_of,
    notes_of,
    parse,
    size_of,
    with_blob,
    with_notes,
)
from fdbqueue.layout import (
    DELAY,
    DROP,
    GO,
    GROUP,
    HOLD,
    LEASE,
    RANDOM_BYTES,
    RESULT,
    SWEEP,
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
from fdbqueue.lossless import refuse_if_changed
from fdbqueue.order import MAX_RANK
from fdbqueue.ordercheck import NoOrderCheck
from fdbqueue.outcomes import HELD_US, MAX_RESULT_BYTES, encode_result, pull, read_record
from fdbqueue.outcomes import begin as begin_outcome
from fdbqueue.outcomes import end as end_outcome
from fdbqueue.outcomes import remove as remove_outcome
from fdbqueue.outcomes import reopen as reopen_outcome
from fdbqueue.payloads import clear_parts
from fdbqueue.stats import COUNTED_RANKS, count, count_levels, read_counts, read_level_counts, read_stats
from fdbqueue.verbs import BoundVerb, verb

__all__ = [
    "BLOB_ID_BYTES",
    "CHUNK_BYTES",
    "CLAIMED",
    "CODEC_ERRORS",
    "COMMITS_IN_FLIGHT",
    "COMMIT_UNKNOWN_RESULT",
    "COUNTED_RANKS",
    "DELAY",
    "DROP",
    "GO",
    "GROUP",
    "HELD_US",
    "HOLD",
    "LEASE",
    "MAX_RANK",
    "MAX_RESULT_BYTES",
    "NOT_COMMITTED",
    "NO_NOTES",
    "RANDOM_BYTES",
    "RESULT",
    "SWEEP",
    "TAKEN",
    "TOO_MANY_WATCHES",
    "TRANSACTION_TIMED_OUT",
    "TRANSACTION_TOO_LARGE",
    "TRANSACTION_TOO_OLD",
    "TTL",
    "UNREADABLE",
    "AdaptiveLimit",
    "Blob",
    "BoundVerb",
    "Browser",
    "ClaimedBatch",
    "Database",
    "Envelope",
    "FDBError",
    "FormatError",
    "Future",
    "GroupRecord",
    "Item",
    "KeyValue",
    "LastIndex",
    "Layout",
    "Name",
    "NoOrderCheck",
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
    "append_items",
    "arrivals_since",
    "arrivals_until",
    "attempts",
    "begin_outcome",
    "begin_sweep",
    "blob_of",
    "check_blobs",
    "check_borders",
    "check_limit",
    "check_queue",
    "check_values",
    "chunks_of",
    "claimed_places",
    "clear_parts",
    "count",
    "count_levels",
    "count_members",
    "encode_group",
    "encode_result",
    "end_member",
    "end_outcome",
    "end_wait",
    "envelope",
    "envelope_without_notes",
    "fdb_tuple",
    "finished",
    "group_keys",
    "group_record",
    "has_notes",
    "has_parts",
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
    "pull",
    "raise_high_water_mark",
    "rank_of",
    "read_counts",
    "read_group",
    "read_high_water_mark",
    "read_level_counts",
    "read_member_counts",
    "read_record",
    "read_stats",
    "refuse_if_changed",
    "remove_outcome",
    "reopen_outcome",
    "rows",
    "run",
    "run_async",
    "set_rows",
    "settle",
    "size_of",
    "span_of",
    "started",
    "strinc",
    "verb",
    "wait_in_thread",
    "wake_at_close",
    "wants_arrivals",
    "with_blob",
    "with_notes",
    "within",
    "write_chunks",
]
