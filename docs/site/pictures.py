"""Draw the pictures of the explanations, after one was changed here: ``python -m docs.site.pictures``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .drawing import Picture

PICTURES = Path(__file__).parents[1] / "pictures"


def key_space() -> Picture:
    """Draw the keys of one queue, in the order of the database."""
    drawn = Picture("The keys of the queue orders, in the order of the database", 760, 330)
    rows = [
        ('("orders", "count", "leased")', "1", "counters, changed by atomic adds", "soft"),
        ('("orders", "delay", 2, r)', "b", "an item that waits for its time", "soft"),
        ('("orders", "lease", 1, r)', "a", "an item that a consumer has", "accent"),
        ('("orders", "timer", 17:05, 1, r, "lease")', "", "when that lease ends", "warm"),
        ('("orders", "timer", 18:00, 2, r, "delay")', "", "when that delay ends", "warm"),
        ('("orders", 3, r)', "c", "available: the next item to take", "accent"),
        ('("orders", 4, r)', "d", "available: a new item goes behind the last", "accent"),
    ]
    drawn.text(20, 24, "key (a tuple)", bold=True)
    drawn.text(372, 24, "value", bold=True)
    drawn.text(440, 24, "what it is", bold=True)
    for number, (key, value, what, kind) in enumerate(rows):
        y = 38 + number * 38
        drawn.box(14, y, 350, 30, "", kind)
        drawn.text(24, y + 15, key, mono=True, size=13, middle=True)
        drawn.text(388, y + 15, value, mono=True, middle=True)
        drawn.text(440, y + 15, what, colour="faint", middle=True)
    drawn.text(20, 322, "A state is a place: to lease an item is to move its key.", colour="faint")
    return drawn


def enqueues() -> Picture:
    """Draw two producers that take the same index."""
    drawn = Picture("Two producers take the same index, and do not conflict", 720, 300)
    for y, name, random in ((20, "producer A", "7f…"), (160, "producer B", "c2…")):
        drawn.text(20, y + 20, name, bold=True)
        drawn.box(120, y, 180, 44, "snapshot read:\nthe last index is 6")
        drawn.arrow((300, y + 22), (360, y + 22))
        drawn.box(360, y, 170, 44, f"write (7, {random})\nno read conflict", "accent")
    drawn.arrow((530, 42), (575, 42), (575, 108), (600, 108), colour="accent")
    drawn.arrow((530, 182), (575, 182), (575, 146), (600, 146), colour="accent")
    drawn.box(600, 60, 104, 30, "(6, a1…)")
    drawn.box(600, 95, 104, 30, "(7, 7f…)", "accent")
    drawn.box(600, 130, 104, 30, "(7, c2…)", "accent")
    drawn.text(600, 50, "the queue", bold=True)
    drawn.text(20, 240, "Both commit. The random part decides between items of one index,", colour="faint")
    drawn.text(20, 260, "and keeps the two keys apart.", colour="faint")
    drawn.text(20, 285, "An enqueue that begins after another has committed sees its index, and takes a larger one.")
    return drawn


def staged_dequeue() -> Picture:
    """Draw the steps of three processes at one head."""
    drawn = Picture("A staged dequeue of three processes, step by step", 760, 470)
    columns = (("process A", 320), ("process B", 490), ("process C", 660))
    for name, x in columns:
        drawn.box(x - 70, 10, 140, 30, name)
        drawn.arrow((x, 40), (x, 70))
    steps = [
        ("1", "register a request,\nand commit", ("request v1", "request v2", "request v3"), "soft"),
        ("2", "read the requests and\nitems at that version", ("v1 v2 v3 | a b c",) * 3, "soft"),
        ("3", "the place in the line\nassigns the item", ("1st: a", "2nd: b", "3rd: c"), "warm"),
        ("4", "take it, remove the\nrequest, and commit", ("takes a", "takes b", "takes c"), "accent"),
    ]
    for number, (label, what, texts, kind) in enumerate(steps):
        y = 70 + number * 78
        drawn.text(20, y + 14, f"{label}.", bold=True)
        for place, line in enumerate(what.split("\n")):
            drawn.text(42, y + 14 + place * 19, line)
        for (_, x), text in zip(columns, texts, strict=True):
            drawn.box(x - 75, y, 150, 38, text, kind)
            if number < len(steps) - 1:
                drawn.arrow((x, y + 38), (x, y + 78))
    y = 400
    drawn.text(
        20, y + 12, "What C's last transaction reads, so that it conflicts with a take out of turn, and with no other:"
    )
    for place, (text, kind) in enumerate(
        (("a", "soft"), ("gap", "warm"), ("b", "soft"), ("gap", "warm"), ("c", "accent"))
    ):
        drawn.box(20 + place * 90, y + 24, 80, 32, text, kind)
    drawn.text(490, y + 45, "the gaps and its own item", colour="faint")
    return drawn


def smart_check() -> Picture:
    """Draw an enqueue that replaces a queued item."""
    drawn = Picture("A smart check: queued items decide about a new one", 720, 330)
    drawn.text(20, 30, "the index of types and keys", bold=True)
    entries = (("progress, a.iso, 4", "accent"), ("progress, b.iso, 5", "soft"), ("progress, c.iso, 6", "soft"))
    for number, (text, kind) in enumerate(entries):
        drawn.box(20, 44 + number * 40, 190, 32, text, kind)
    drawn.text(270, 30, "the items", bold=True)
    for number, (text, kind) in enumerate(
        (("4: a.iso 10 %", "accent"), ("5: b.iso 50 %", "soft"), ("6: c.iso 5 %", "soft"))
    ):
        drawn.box(270, 44 + number * 40, 150, 32, text, kind)
    drawn.arrow((210, 60), (270, 60), colour="accent")
    drawn.box(500, 44, 200, 52, "new: a.iso 20 %\ntype progress, key a.iso", "warm")
    drawn.arrow((500, 60), (420, 60), colour="warm")
    drawn.text(460, 120, "item 4 is asked:", anchor="start")
    drawn.text(460, 140, "check(new) → ignore,", mono=True, size=13)
    drawn.text(460, 158, "and its value is now 20 %", mono=True, size=13)
    drawn.text(20, 205, "In one transaction:", bold=True)
    lines = (
        "1. read the entries of the scope (here: this type and key), by snapshot",
        "2. read their items, and ask them in the queue's order; the first that cares decides",
        "3. write what it decided: here item 4 gets a new value in its old place",
        "4. add conflicts: the entries up to item 4, and the key of item 4. Nothing of b.iso or c.iso.",
    )
    for number, text in enumerate(lines):
        drawn.text(30, 230 + number * 23, text)
    return drawn


def sessions_and_gates() -> Picture:
    """Draw sessions, the line of ready ones, and a gate."""
    drawn = Picture("Sessions, the line of ready sessions, and a gate", 760, 380)
    drawn.text(20, 26, "each session: a queue of its own", bold=True)
    rows = (
        ("ann", ("a1", "a2", "a3"), "acme"),
        ("bob", ("b1",), "acme"),
        ("cy", ("c1", "c2"), "acme"),
        ("dee", ("d1",), "bolt"),
    )
    for number, (name, items, tenant) in enumerate(rows):
        y = 42 + number * 56
        drawn.text(20, y + 16, name, bold=True, middle=True)
        for place, item in enumerate(items):
            drawn.box(64 + place * 50, y, 44, 32, item, "accent" if place == 0 else "soft")
        drawn.text(64, y + 46, f"gate: {tenant}", colour="faint", size=12)
    drawn.text(330, 26, "the line: pointers to ready sessions", bold=True)
    for number, (name, kind) in enumerate((("→ ann", "accent"), ("→ bob", "accent"), ("→ dee", "accent"))):
        drawn.box(330 + number * 92, 42, 84, 32, name, kind)
    drawn.text(330, 116, "the line of gate acme: full, 2 of 2 slots", bold=True)
    drawn.box(330, 130, 84, 32, "→ cy", "warm")
    drawn.text(425, 150, "waits for a slot; costs others nothing", colour="faint")
    drawn.text(330, 206, "a worker", bold=True)
    lines = (
        "1. leases the first pointer: so the session is leased",
        "2. reads the session's first item, and works",
        "3. acks: the item goes, and the pointer goes",
        "    to the end of the line (or away, if empty)",
        "4. gives the slot back: cy's pointer moves on",
    )
    for number, text in enumerate(lines):
        drawn.text(338, 230 + number * 22, text)
    drawn.arrow((216, 58), (328, 58), colour="accent")
    drawn.arrow((166, 170), (240, 170), (240, 146), (328, 146), colour="warm")
    drawn.text(
        20,
        368,
        "An idle session has no pointer, and costs nothing. One worker a session: no two items of ann at once.",
        colour="faint",
    )
    return drawn


def exactly_once() -> Picture:
    """Draw a commit whose outcome is unknown."""
    drawn = Picture("A commit with an unknown outcome, and its marker", 720, 300)
    drawn.box(20, 20, 130, 40, "enqueue(db, x)")
    drawn.arrow((150, 40), (190, 40))
    drawn.box(190, 14, 200, 52, "write the item\nand the marker (slot 3)", "accent")
    drawn.arrow((390, 40), (430, 40))
    drawn.box(430, 20, 120, 40, "commit")
    drawn.arrow((490, 60), (490, 110), colour="warm")
    drawn.text(505, 90, "1021: unknown", colour="warm")
    drawn.box(390, 110, 200, 40, "read the marker", "warm")
    drawn.arrow((390, 130), (330, 130), colour="accent")
    drawn.box(150, 110, 180, 40, "there: return the result", "accent")
    drawn.arrow((490, 150), (490, 190))
    drawn.box(390, 190, 200, 40, "missing: try again")
    drawn.arrow((590, 210), (640, 210), (640, 40), (552, 40), dashed=True)
    drawn.text(20, 265, "The marker and the item are in one transaction: both are there, or neither.", colour="faint")
    drawn.text(20, 287, "The next call of the slot overwrites the marker, so they do not pile up.", colour="faint")
    return drawn


def embedded_commit() -> Picture:
    """Draw a commit of the embedded engine."""
    drawn = Picture("A commit of the embedded engine", 760, 330)
    drawn.box(20, 20, 210, 70, "a transaction:\na snapshot, its writes,\nthe ranges that it read")
    drawn.arrow((230, 55), (290, 55))
    drawn.box(290, 20, 200, 70, "take the writer lock\n(one writer at a time,\nover all processes)", "warm")
    drawn.arrow((490, 55), (550, 55))
    drawn.box(550, 20, 190, 70, "look in the log:\nhas a later commit\nwritten what it read?", "warm")
    drawn.arrow((645, 90), (645, 130), colour="warm")
    drawn.box(550, 130, 190, 40, "yes: 1020, try again")
    drawn.arrow((580, 90), (510, 132), colour="accent")
    drawn.box(290, 118, 220, 52, "no: write new pages\nbeside the old ones", "accent")
    drawn.arrow((400, 170), (400, 206), colour="accent")
    drawn.box(290, 206, 220, 52, "the root page, with a redo;\none wait for the disk", "accent")
    drawn.arrow((290, 232), (230, 232), colour="accent")
    drawn.box(20, 206, 210, 52, "other processes see it;\nwatches wake up", "accent")
    drawn.text(
        20,
        292,
        "A process may die at any arrow: the old pages are whole until the root page names the new ones,",
        colour="faint",
    )
    drawn.text(20, 314, "and the system frees the lock of a dead process.", colour="faint")
    return drawn


ALL: dict[str, Callable[[], Picture]] = {
    "key-space": key_space,
    "enqueues": enqueues,
    "staged-dequeue": staged_dequeue,
    "smart-check": smart_check,
    "sessions-and-gates": sessions_and_gates,
    "exactly-once": exactly_once,
    "embedded-commit": embedded_commit,
}


def main() -> None:
    for name, draw in ALL.items():
        (PICTURES / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
