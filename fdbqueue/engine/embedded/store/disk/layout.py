"""What stands where in the LMDB environment, and the version of that format.

========  ======================================  ================================================================
database  key                                     value
========  ======================================  ================================================================
``data``  a key of the user, up to 500 bytes      its value
``data``  the first 500 bytes of longer keys,     8-byte id of the level that holds the rest of them
          and a zero byte
``long``  id of a level, rest of the key          as in ``data``: a value, or the id of the next level (`longkeys`)
``log``   version of a commit, 8 bytes            that commit and some before it: when each was, and which keys and
                                                  ranges it wrote (`logrows`, `written`)
``meta``  ``format``                              ``fdbqueue embedded 2``
``meta``  ``boot``                                the boot in which the last process opened the folder
(own)     ``tail``                                the newest commits, as in ``log``, in the database of databases
========  ======================================  ================================================================

All numbers are big-endian, so that LMDB's order of bytes is theirs. Beside LMDB's two meta pages, in what it leaves of
them, stands how the last commits are made again after a power cut (`redo`).
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
"""Without a tail, and a row for each commit."""

DIRECT_KEY: Final = 500
"""Keys up to this many bytes stand in LMDB as they are; its own limit is 511."""

REBOOT_VERSIONS: Final = 1_000_000
"""How far versions jump when the machine was booted anew."""

WINDOW_SECONDS: Final = 5.0
"""How long a transaction may last, as on a cluster."""
