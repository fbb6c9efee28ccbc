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
``meta``  ``format``                              ``fdbqueue embedded 2``
``meta``  ``boot``                                the boot in which the last process opened the folder
(own)     ``tail``                                the newest commits, as in ``log``, in the database of databases
========  ======================================  ================================================================

All numbers are big-endian, so LMDB's byte order is their numeric order. LMDB leaves a part of its two meta pages
unused. That part stores how to repeat the last commits after a power cut (`redo`).
"""

from __future__ import annotations

from typing import Final

DATA: Final = b"data"
LONG: Final = b"long"
LOG: Final = b"log"
META: Final = b"meta"

FORMAT_KEY: Final = b"format"
BOOT_KEY: Final = b"boot"
TAIL_KEY: Final = b"tail"
FORMAT: Final = b"fdbqueue embedded 2"
FORMER_FORMAT: Final = b"fdbqueue embedded 1"
"""It has no tail, and one row for each commit."""

DIRECT_KEY: Final = 500
"""LMDB stores keys of up to this many bytes unchanged; its own limit is 511."""

REBOOT_VERSIONS: Final = 1_000_000
"""How far versions jump after a reboot of the machine."""

WINDOW_SECONDS: Final = 5.0
"""Maximum duration of a transaction, the same as on a cluster."""
