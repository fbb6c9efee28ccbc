"""``fdbqueue export``, ``import``, ``copy`` and ``backup``: items in files and in other databases."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from fdbqueue.cli.errors import end_if, noted, refuse, refuse_if, refused, tell
from fdbqueue.cli.opening import CodecName, opened, opened_queue, queue_of
from fdbqueue.cli.output import print_json
from fdbqueue.transfer import backup as back_up
from fdbqueue.transfer import copy_queue, export_items, import_items, release_copy
from fdbqueue.transfer.files import SourceFile

_AGAIN = "Run the same command again, and it goes on where it was."


def export(
    queue: str,
    to: Path,
    where: str | None = None,
    skip_bad: bool = False,
    url: str | None = None,
    codec: CodecName = CodecName.json,
) -> None:
    """Write the items of all states into a file, and leave them in the queue.

    The file has their positions, states, attempts, times and headers. It appears when it is whole. If the command is
    interrupted, run it again: it goes on. `fdbqueue import` restores the items. With the codec bytes, JSON lines show
    values as they are stored; the file names the queue's codec all the same.

    Args:
        to (FILE): The file: .jsonl for JSON lines, or .parquet.
        skip_bad: Leave out items that can't be read, and print their positions.

    Example: fdbqueue export orders --to orders.parquet --where "color = 'red'"
    """
    with opened_queue(url, queue, codec) as (db, source), noted(_AGAIN), refused(None, ModuleNotFoundError):
        on_bad: Literal["fail", "skip"] = "skip" if skip_bad else "fail"
        report = export_items(db, source, to, where=where, on_bad=on_bad)
    for left_out in report.skipped:
        tell(f"The item {left_out.text} can't be read, and was left out.")
    skipped = {"skipped": len(report.skipped)} if skip_bad else {}
    print_json({"items": report.items, "digest": report.digest, "resumed": report.resumed, **skipped})


def import_(queue: str, source: Path, without_marks: bool = False, url: str | None = None) -> None:
    """Restore the items of a file that `fdbqueue export` wrote, each exactly once.

    Items keep their positions if the queue is empty; otherwise they go behind its last item. Delayed items and dead
    letters stay what they are. Items that were leased become available, with their attempts. If the command is
    interrupted, run it again: it goes on. A file that is in already is not imported again.

    Args:
        source (--from, FILE): The file that an export wrote.
        without_marks: Restore items of groups, or with completions, as plain items.

    Example: fdbqueue import orders --from orders.parquet
    """
    with refused(None, ModuleNotFoundError):
        named = SourceFile(source).header.codec
        if named not in list(CodecName):
            refuse(f"its items have the codec {named!r} of a program: import it there", "--from")
        with opened(url, create=True) as db, noted(_AGAIN):
            report = import_items(db, queue_of(queue, CodecName(named)), source, without_marks=without_marks)
    print_json({name: getattr(report, name) for name in ("items", "digest", "enqueued", "kept_positions")})


import_.__name__ = "import"  # the command's name, which a function can't have


def copy(queue: str, source: str, target: str | None = None, release: bool = False) -> None:
    """Move a queue to another database while both are in use. Exits with 1 if items are left.

    Every item moves once, with its position, attempts and times. Leased items stay until they are acked or given back.
    Let producers and consumers use the new database, and repeat the command until none is left. An interrupted command
    goes on when it is repeated. It prints a digest of all items that have moved, and one of the items at the target.
    They are equal until a producer or a consumer uses the target.

    With --release it ends a copy that will not be finished. The queue can be copied to another database then. Items
    of the last batch go back to their places, unless TO has them; those that have moved stay there.

    Args:
        source (argument, FROM): The database that the queue is in: file:PATH or fdb:.
        target (argument, TO, no default): The database that it moves to.
        release: End an unfinished copy. Leave TO out if that database is lost.

    Example: fdbqueue copy orders file:shop fdb:
    """
    if release:
        with opened_queue(source, queue) as (db, moved), nullcontext() if target is None else opened(target) as other:
            print_json({"released": release_copy(db, moved, target=other)})
        return
    refuse_if(target is None, "give the database that the queue moves to", "TO")
    again = noted("Run the same command again: it goes on.")
    with opened_queue(source, queue) as (db, moved), opened(target, create=True) as other, again:
        report = copy_queue(db, other, moved)
    print_json({name: getattr(report, name) for name in ("items", "moved", "left", "digest", "target_digest")})
    end_if(report.left)


def backup(source: str, to: Path) -> None:
    """Copy an embedded folder, with everything in it, while processes use it.

    The copy is the state after one commit. It appears when it is whole. Open it as file:TO, or move it to the place of
    the old folder to restore it.

    Args:
        source (argument, FROM): The database: file:PATH.
        to (argument, TO): The folder to make.

    Example: fdbqueue backup file:shop /backups/shop-monday
    """
    with noted("No backup was made."):
        report = back_up(source, to)
    print_json({"folder": str(report.folder), "size_bytes": report.size_bytes})
