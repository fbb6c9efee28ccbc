"""The catalogue: which queues a database has, so that people and tools find them.

A queue registers itself when something is enqueued into it. Its record has a key of its own, outside the queue: all
records together are one short range, however large the queues are. An enqueue looks for it once a second
(`looks.py`), together with its other reads. If there is none, it writes one in the enqueueing transaction. It is an
atomic operation: of two processes that do this at the same time the first record stays, and neither conflicts.

The record goes with the queue's `clear`. A process that still believes the queue to be registered finds that out within
a second. A queue that is not registered works as any other, and each call that may write looks at other names.

A name is registered only if it lies within no other, and no other within it: the keys of one would be among those of
the other. Older versions have registered such names. These go on, and lists and `check` report them.

Every call that encodes or decodes compares its object's codec with the record: the bytes of one codec are other values
in another. The codec bytes shows the items of every queue as they are stored, so that they can be rescued. It adds none
to a queue with another codec.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import below, is_within
from fdbqueue.engine.steps import Steps, rows, started, value_of
from fdbqueue.errors import FormatError, NestedQueue, OtherCodec
from fdbqueue.stored.counters import in_order
from fdbqueue.stored.known import Registration
from fdbqueue.stored.layout import CATALOGUE, Layout, described, name_of, names_above
from fdbqueue.stored.places import has_items
from fdbqueue.stored.policies import Policy, StoredBackoff, backoff_in, backoff_text, policy_text, stored_backoff
from fdbqueue.stored.settings import own_items

NESTED_REMEDY = "Rename one of them: fdbqueue.rename."
"""What to do about queues whose names lie within each other."""
_NEWER = 2
_MESSAGES = " messages"
"""The end of the names of the codecs of smart queues, whose bytes are those of the codec in front of it."""


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a queue's record says. Fields of newer versions are ignored."""

    codec: str = msgspec.field(name="c")
    """The name of its codec."""
    order: str = msgspec.field(default="", name="o")
    """The name of its order; "": first in, first out."""
    policy: str = msgspec.field(default="", name="p")
    """Its policy as text, which versions up to 0.2.0 show; "" if it has none."""
    path: tuple[str, ...] = msgspec.field(default=(), name="d")
    """Its path in the directory layer; empty if it is in none."""
    format: int = msgspec.field(default=1, name="f")
    """The version of this format."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] | None = msgspec.field(default=None, name="m")
    """After how many failed attempts an item is a dead letter; None: the record does not say."""
    backoff: StoredBackoff = msgspec.field(default=(), name="b")
    """How long a failed item waits; (): the record does not say."""

    def with_policy(self, max_attempts: int | None, backoff: StoredBackoff) -> About:
        """Return the record with a policy."""
        text = policy_text(max_attempts, backoff)
        return replace(self, policy=text, max_attempts=max_attempts, backoff=backoff)

    def completed(self, own: Policy) -> About:
        """Return the record with the parts of an object's policy of which it does not say anything."""
        most = own.max_attempts if self.max_attempts is None else self.max_attempts
        backoff = self.backoff or stored_backoff(own.backoff)
        is_whole = (most, backoff) == (self.max_attempts, self.backoff)
        return self if is_whole else self.with_policy(most, backoff)

    def applied(self, own: Policy) -> Policy:
        """Return the policy that an object follows: what is stored, and what the object gives where nothing is.

        Of a function only the text is stored. So each process follows its own.
        """
        return Policy(self.max_attempts, backoff_in(self.backoff)).or_else(own)

    def differs(self, own: Policy) -> str:
        """Return how the policy that an object gives is not as stored, and what applies; "" if it is."""
        told, remedy = [], []
        if None not in (own.max_attempts, self.max_attempts) and own.max_attempts != self.max_attempts:
            told.append(f"max_attempts={self.max_attempts} is stored with it and applies, not {own.max_attempts}.")
            remedy.append(f"max_attempts={own.max_attempts}")
        given = stored_backoff(own.backoff)
        if given and self.backoff and given != self.backoff:
            stored = f"backoff={backoff_text(self.backoff)} is stored with it"
            is_known = backoff_in(self.backoff) is not None
            applies = "and applies, not" if is_known else "as a text only, so what is given here applies,"
            told.append(f"{stored} {applies} {backoff_text(given)}.")
            remedy.append(f"backoff={backoff_text(given)}")
        return f"{' '.join(told)} To change it: Queue.register(db, {', '.join(remedy)})." if told else ""


def path_of(name: object) -> tuple[str, ...]:
    """Return the path of a directory that a queue is named by; empty for other names."""
    path = getattr(name, "get_path", None)
    return () if path is None else tuple(map(str, path()))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(About).decode


def pack_about(created_us: int, about: About) -> bytes:
    """Return the bytes to store. Their order is that of the times, so that `byte_min` keeps the first record."""
    return created_us.to_bytes(8, "big") + _encode(about)


_REGISTER = "It registers the queue. Register it again: Queue(name, codec=…).register(db, on_codec='replace')."


def read_about(layout: Layout, stored: bytes) -> tuple[int, About]:
    """Return the time of a registration in microseconds, and what it says.

    Raises:
        FormatError: this version of the library can't read it.
    """
    created_us, about = layout.decode(layout.catalogue_key, stored, _about, _REGISTER)
    if about.format >= _NEWER:
        raise FormatError(
            f"The queue {layout.describe()} was registered by a newer version of fdbqueue. Update it here.",
            newer=True,
        )
    return created_us, about


def _about(stored: bytes) -> tuple[int, About]:
    about = _decode(stored[8:])
    try:
        backoff_in(about.backoff)
    except (TypeError, ValueError) as error:
        raise FormatError(f"its back-off can't be used: {error}") from error
    return in_order(stored[:8]), about


def about_of(own: Registration, policy: Policy) -> About:
    """Return the record that a queue's object registers."""
    return About(own.codec, own.order, path=own.path).completed(policy)


def write_about(tr: Transaction, layout: Layout, about: About | None = None) -> None:
    """Write a queue's record unless there is one, as its object has it by default. It never conflicts."""
    own: Registration | None = layout.known.registration
    if about is None and own is not None:
        about = about_of(own, layout.known.given)
    if about is not None:
        tr.byte_min(layout.catalogue_key, pack_about(time.time_ns() // 1_000, about))
        layout.known.note_writing(tr)


async def queues_around(tr: Transaction, names: Iterable[bytes]) -> list[bytes]:
    """Return which of the names around a queue's own are registered, all by their prefixes, the shortest first.

    *Conflicts:* none, it reads by snapshot. *Cost:* one read for each name, all in parallel.
    """
    asked = [(one, tr.snapshot.get(CATALOGUE + one)) for one in names]
    return [one for one, read in asked if (await value_of(read)).present()]


async def nested_with(tr: Transaction, layout: Layout) -> list[bytes]:
    """Return the prefixes of registered queues whose names lie within this one's, or around it: some of each.

    *Conflicts:* none, it reads by snapshot. *Cost:* two reads of a row, and one for each element of the name but the
    last, all in parallel.
    """
    view, own = tr.snapshot, layout.prefix
    # The record in front of this one's place is that of the queue around it, if no other names are nested.
    front = started(rows(view, CATALOGUE, layout.catalogue_key, limit=1, reverse=True))
    inside = started(rows(view, *below(layout.catalogue_key), limit=1))
    around = started(queues_around(tr, names_above(own)))
    found = set(await around)
    others = [row.key[len(CATALOGUE) :] for row in [*await front, *await inside]]
    return sorted({*found, *(one for one in others if is_within(own, one) or is_within(one, own))})


def nested_told(one: bytes, other: bytes) -> str:
    """Return a sentence about two queues, by their prefixes, of which one's name lies within the other's."""
    inner, outer = (one, other) if is_within(one, other) else (other, one)
    return (
        f"The name of the queue {described(name_of(inner))} lies within that of {described(name_of(outer))}, so a call"
        " on one of them may change the items of the other."
    )


async def refuse_nested(
    tr: Transaction, layout: Layout, *, inside: bool = False, looking: Steps[list[bytes]] | None = None
) -> None:
    """Refuse to register a queue whose name lies within that of a registered one, or around it.

    Args:
        inside: whether only names within its own are refused.
        looking: `nested_with` of this transaction, if that is under way.

    Raises:
        NestedQueue: there is such a name.

    *Conflicts:* with the registration of such a name: of two at the same time, one runs again and is refused. Only a
    queue at a prefix that is no tuple may be missed then; `check` reports it. *Cost:* as `nested_with`.
    """
    found = await (looking or nested_with(tr, layout))
    if inside:
        found = [one for one in found if is_within(one, layout.prefix)]
    if found:
        remedy = (
            "Clear the inner queue first."
            if inside
            else f"Give {layout.describe()} another name: none may begin with all elements of the other."
        )
        raise NestedQueue(
            f"{nested_told(layout.prefix, found[0])} Nothing was changed. {remedy} Or move the other queue out of the"
            f" way: fdbqueue.rename(db, {described(name_of(found[0]))}, …)."
        )
    tr.add_read_conflict_range(*below(layout.catalogue_key))
    for one in () if inside else names_above(layout.prefix):
        tr.add_read_conflict_key(CATALOGUE + one)


async def set_about(
    tr: Transaction, layout: Layout, *, replaces: bool = False, policy: Mapping[str, Any] | None = None
) -> None:
    """Write a queue's record as its object has it. A queue that was registered keeps what the object does not say.

    Args:
        replaces: whether the codec of items that are there may be replaced.
        policy: the parts of its policy that change: `max_attempts`, `backoff`.

    Raises:
        OtherCodec: the queue has items, and is registered with another codec. NestedQueue: it is not
            registered, and its name lies within that of another queue, or around it.
    """
    own: Registration | None = layout.known.registration
    stored = await value_of(tr.get(layout.catalogue_key))
    created_us, about = time.time_ns() // 1_000, About("")
    if stored.present():
        about = about_if_readable(layout, bytes(stored)) or about
        created_us = int.from_bytes(bytes(stored)[:8], "big")
    else:
        await refuse_nested(tr, layout)
    if own is not None:
        if not replaces and not fits(own.codec, about.codec) and await has_items(tr, layout):
            raise OtherCodec(
                f"The items of {layout.describe()} have the codec {about.codec!r}, by the queue's registration. With"
                f" the codec {own.codec!r} they would be other values. Nothing was changed. If the registration is"
                " wrong, replace it: Queue(name, codec=…).register(db, on_codec='replace')."
            )
        about = replace(about, codec=own.codec, order=own.order or about.order, path=own.path or about.path)
    if not about.codec:
        raise TypeError(f"{layout.describe()} has no codec to register: call register of its Queue.")
    about, policy = about.completed(layout.known.given), policy or {}
    backoff = stored_backoff(policy["backoff"]) if "backoff" in policy else about.backoff
    about = about.with_policy(policy.get("max_attempts", about.max_attempts), backoff)
    tr.set(layout.catalogue_key, pack_about(created_us, about))
    if replaces:
        await _remove_damaged_codec(tr, layout)
    layout.known.doubt()


async def _remove_damaged_codec(tr: Transaction, layout: Layout) -> None:
    """Remove the name of a layer's own codec if it is no text. It is then unknown, and any codec is taken."""
    for key in [part.codec_key(layout) for part in own_items.all().values() if part.codec_key is not None]:
        stored = await value_of(tr.get(key))
        try:
            layout.decode(key, bytes(stored) if stored.present() else b"", bytes.decode)
        except FormatError:
            tr.clear(key)


async def adopt_policy(tr: Transaction, layout: Layout) -> None:
    """Store the policy that a queue's object gives, as far as the queue's record says nothing of it.

    *Conflicts:* with another call that changes the record: of two that adopt one, one runs again. *Cost:* one read and
    one write, once in the life of a queue.
    """
    known = layout.known
    stored = await value_of(tr.get(layout.catalogue_key))
    if not stored.present():
        return
    created_us, about = read_about(layout, bytes(stored))
    completed = about.completed(known.given)
    if completed != about:
        tr.set(layout.catalogue_key, pack_about(created_us, completed))
    known.note_writing(tr)


def forget_queue(tr: Transaction, layout: Layout) -> None:
    """Remove a queue's record."""
    tr.clear(layout.catalogue_key)
    layout.known.doubt()


def about_if_readable(layout: Layout, stored: bytes) -> About | None:
    """Return what a record says; None if it can't be read, which a list of queues reports."""
    try:
        return read_about(layout, stored)[1]
    except FormatError:
        return None


def codec_of(layout: Layout, stored: bytes) -> str:
    """Return the codec that a record names; "" if the record can't be read."""
    about = about_if_readable(layout, stored)
    return "" if about is None else about.codec


def fits(codec: str, registered: str) -> bool:
    """Return whether a codec has the bytes of the one that a queue is registered with; "": that is unknown.

    >>> fits("json", "json messages"), fits("msgpack", "json")
    (True, False)
    """
    return not registered or codec.removesuffix(_MESSAGES) == registered.removesuffix(_MESSAGES)
