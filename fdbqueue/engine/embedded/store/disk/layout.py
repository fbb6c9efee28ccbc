"""The layout of the LMDB environment, and the version of that format.

========  ======================================  ================================================================
database  key                                     value
========  ======================================  ================================================================
``data``  a key of the user, up to 500 bytes      its value
``data``  the first 500 bytes of longer keys,     8-byte id of the level that holds the rest of them
          and a zero byte
``long``  id of a level, rest of the key          as in ``data``: a value, or the id of the next level (`long_keys`)
``log``   version of a commit, 8 bytes            that commit and some before it: the time of each, and the keys and
                                                  ranges that it wrote (`log_rows`)
``meta``  ``format``                              `FORMAT`, or `PLAIN_FORMAT`
``meta``  ``boot``                                the boot in which the last process opened the folder
(own)     ``tail``                                the newest commits, as in ``log``, in the database of databases
========  ======================================  ================================================================

With `FORMAT`, each row of ``data``, ``long`` and ``log`` ends with a checksum (`checksums`).

All numbers are big-endian, so LMDB's byte order is their numeric order. LMDB leaves a part of its two meta pages
unused. That part stores how to repeat the last commits after a power cut (`redo`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import lmdb

DATA: Final = b"data"
LONG: Final = b"long"
LOG: Final = b"log"
META: Final = b"meta"

CHECKED: Final = frozenset({DATA, LONG, LOG})
"""The databases whose rows have checksums, if the format says so."""

FORMAT_KEY: Final = b"format"
BOOT_KEY: Final = b"boot"
TAIL_KEY: Final = b"tail"
FORMAT: Final = b"fdbqueue embedded 3: rows have checksums"
"""The format of new folders. An older version of the library compares the whole text, and refuses the folder. No bit
that flips makes another format of it."""
PLAIN_FORMAT: Final = b"fdbqueue embedded 2"
"""Rows have no checksums. Folders of earlier versions keep it, and databases in memory have it."""
FORMER_FORMAT: Final = b"fdbqueue embedded 1"
"""As `PLAIN_FORMAT`, with no tail, and one row of the log for each commit. It is brought up to that."""
FORMATS: Final = (FORMAT, PLAIN_FORMAT, FORMER_FORMAT)
"""All formats that this version of the library reads."""

DIRECT_KEY: Final = 500
"""LMDB stores keys of up to this many bytes unchanged; its own limit is 511."""

REBOOT_VERSIONS: Final = 1_000_000
"""How far versions jump after a reboot of the machine."""

WINDOW_SECONDS: Final = 5.0
"""Maximum duration of a transaction, the same as on a cluster."""


# LMDB's objects, as the engine uses them.

Row: TypeAlias = tuple[bytes, bytes]
"""A key and its value."""
Txn: TypeAlias = "lmdb.Transaction[bytes]"
Cursor: TypeAlias = "lmdb.Cursor[bytes]"
Handle: TypeAlias = "lmdb._Database"
"""A named database of the environment."""
