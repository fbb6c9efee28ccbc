"""What a layer of your own is made with, beside the public names of `fdbqueue`.

These names are stable within a minor version; docs/guides/own-layer.md shows a layer of them. They come from the queue
and the engine, where their docstrings are. The library's own layers also use the public modules of the folders below
them, which may change in any version.
"""

from __future__ import annotations

from typing import Any

from fdbqueue.base.arguments import check_limit, check_text, check_values
from fdbqueue.base.deprecation import deprecated
from fdbqueue.base.reprs import Named, Shown
from fdbqueue.base.reprs import Table as TextTable
from fdbqueue.base.times import not_negative, positive
from fdbqueue.engine.api import Database, Future, KeyValue, Transaction
from fdbqueue.engine.errors import FDBError, leaves_in_doubt
from fdbqueue.engine.keys import Subspace, strinc, within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import Steps, rows, run, run_async, started, value_of
from fdbqueue.engine.transactional import attempts, is_database, only_database, only_transaction
from fdbqueue.engine.verb import verb
from fdbqueue.errors import FormatError
from fdbqueue.moves.admission import register
from fdbqueue.moves.moves import Moves
from fdbqueue.reads.browse import Browser, Pages, pages
from fdbqueue.reads.queue_rows import CheckPart, ItemCheck, PagePart, Section, add_to_check, add_to_page
from fdbqueue.stored.codecs import CODEC_ERRORS, UNREADABLE, V
from fdbqueue.stored.counters import count, read_counts, read_stats
from fdbqueue.stored.items import (
    NO_NOTES,
    Envelope,
    Notes,
    chunks_of,
    envelope,
    has_parts,
    headers_of,
    is_chunked,
    join_chunks,
    notes_of,
    parse,
    size_of,
    with_notes,
)
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import Permit, is_paused, keep_out, permit_of
from fdbqueue.stored.places import STATES, Standing, State, clear_parts, locate, stored_item
from fdbqueue.stored.positions import TAKEN, Place, new_random, pack
from fdbqueue.verbs.by_position import ByPosition
from fdbqueue.verbs.editing import UNCHANGED, Editing
from fdbqueue.writes.adaptive_limit import AdaptiveLimit
from fdbqueue.writes.appending import append_items, write_chunks

__all__ = [  # noqa: RUF022  in groups
    # Transactions, and code that waits
    "Database",  # a database of either engine
    "Transaction",  # a transaction
    "KeyValue",  # a row
    "Future",  # what a read returns
    "FDBError",  # an error of the database, with its code
    "Steps",  # what a body returns when it is called
    "verb",  # make a blocking and an awaitable call of one coroutine
    "value_of",  # wait for a future in steps
    "run",  # drive steps, and block the thread
    "run_async",  # drive steps in an event loop
    "rows",  # read a range
    "started",  # start steps, to wait for them later
    "attempts",  # run a body in transactions until one commits
    "is_database",  # tell a database from a transaction
    "only_database",  # refuse a transaction
    "only_transaction",  # refuse a database
    "leaves_in_doubt",  # whether an error leaves open if the commit took effect
    # Keys
    "Subspace",  # keys with a prefix
    "fdb_tuple",  # the tuple codec
    "within",  # the begin and end of all keys below a prefix
    "Layout",  # all keys of a queue
    "Place",  # the keys of the items of one state
    "pack",  # pack a position
    "new_random",  # make the random part of a position
    "TAKEN",  # the notes of a queue's own timers
    # Items as they are stored
    "V",  # the type of a queue's values
    "Notes",  # what is stored of an item's life
    "NO_NOTES",  # those of a new item
    "notes_of",  # read the notes of a stored value
    "with_notes",  # write them
    "Envelope",  # a parsed stored value
    "envelope",  # make a stored value
    "parse",  # parse one
    "headers_of",  # read the headers only
    "is_chunked",  # whether the payload is in chunks
    "chunks_of",  # cut a payload
    "join_chunks",  # read one back
    "write_chunks",  # write chunks
    "has_parts",  # whether other keys belong to an item
    "clear_parts",  # clear those
    "size_of",  # the size of a payload
    "check_values",  # refuse values before any key is touched
    "State",  # the name of a state
    "STATES",  # all states
    "stored_item",  # an item with its notes, for users
    "CODEC_ERRORS",  # what codecs raise
    "UNREADABLE",  # what decoders raise
    "FormatError",  # a stored value that can't be read
    # New items, and changes by position
    "append_items",  # write new items
    "register",  # register the queue in the catalogue
    "ByPosition",  # get, cancel, update and reschedule, for a layer to inherit
    "Editing",  # how a layer changes its items
    "UNCHANGED",  # leave this part of an item as it is
    "locate",  # find items in any state
    "Standing",  # a found item
    "Moves",  # move items between states
    # Counters
    "count",  # add to counters
    "read_counts",  # read counters
    "read_stats",  # read the figures of a queue
    # Loops
    "AdaptiveLimit",  # halve batches that are too large for a transaction
    "Permit",  # may this process begin another item?
    "permit_of",  # the permit of a queue
    "is_paused",  # whether a queue is paused
    "keep_out",  # what a call that takes items must ask
    # Looks
    "Browser",  # iterate over items lazily
    "Pages",  # pages of rows
    "pages",  # read a range page by page
    "add_to_check",  # add a part to `fdbqueue.check`
    "CheckPart",  # such a part
    "ItemCheck",  # sees each item once
    "add_to_page",  # add a section to the page of a queue
    "PagePart",  # what reads a section
    "Section",  # a section
    "TextTable",  # a table of it
    # Arguments and representations
    "Named",  # the `__repr__` of a layer
    "Shown",  # the `__repr__` of a result
    "check_limit",  # refuse a wrong number
    "check_text",  # refuse a wrong text
    "positive",  # a duration in microseconds
    "not_negative",  # a delay in microseconds
]


def __getattr__(name: str) -> Any:
    if name == "strinc":
        deprecated("fdbqueue.lowlevel.strinc", since="0.3.0", instead="fdbqueue.lowlevel.within")
        return strinc
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
