"""Join the lines of a queue that has several: versions up to 0.2.0 could spread its ready sessions over *shards*.

A pointer in a shard has the same position in the line, by which its session's record and its slot name it. So its keys
move, and nothing else changes; a live lease goes on. The stored number of shards becomes one that those versions take
for a newer version's: they refuse the queue. What their producers still write meanwhile is found within a second.
"""

from __future__ import annotations

from fdbqueue.lowlevel import Transaction, fdb_tuple, rows

from ..session.records import INTEGERS, Keys

JOINED = 255
"""The number of shards that is stored instead. Versions up to 0.2.0 refuse all from 65 on."""
ROWS_AT_ONCE = 500
_COUNT = fdb_tuple.pack(("count",))
_MARK = fdb_tuple.pack((True,))


async def join_shards(tr: Transaction, keys: Keys) -> bool:
    """Move the first keys of shards into the line. Return whether there were any.

    *Conflicts:* with all that moves one of these pointers. *Cost:* one read, and two writes for each key.
    """
    begin = keys.shards.key()
    found = await rows(tr, *(begin + integer for integer in INTEGERS), limit=ROWS_AT_ONCE)
    for row in found:
        tail = row.key[len(begin) + row.key[len(begin)] - 0x13 :]  # behind the number
        key = keys.line.prefix + tail
        if tail.startswith(_COUNT):
            tr.add(key, row.value)  # waiting workers watch these counters
        elif tail == _MARK:
            tr.byte_max(key, row.value)
        else:
            tr.set(key, row.value)
        tr.clear(row.key)
    if found:
        tr.set(keys.shards.pack(("number",)), JOINED.to_bytes(8, "little"))
    return bool(found)
