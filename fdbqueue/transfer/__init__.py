"""LEVEL 3: queues into files and back, and from one database to another.

`export_items` writes a queue's items of all states into a file, and `import_items` restores them. `copy_queue` moves a
queue to another database while it is in use. `backup` copies an embedded folder while processes use it.

General layout
--------------
`records.py` is an item in a file, the digest of many, and refuses items that belong to more than their queue, such as a
group. `files.py` writes and reads files of records, as JSON lines or Parquet (`parquet.py`). `exports.py`, `copying.py`
and `backups.py` have the calls.
"""

from fdbqueue.transfer.backups import BackupReport, backup
from fdbqueue.transfer.copying import CopyReport, copy_queue, release_copy
from fdbqueue.transfer.exports import ExportReport, ImportReport, export_items, import_items

__all__ = [
    "BackupReport",
    "CopyReport",
    "ExportReport",
    "ImportReport",
    "backup",
    "copy_queue",
    "export_items",
    "import_items",
    "release_copy",
]
