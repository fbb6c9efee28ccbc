"""A queue's settings: its registration, its pause, and the owner of an exclusive subscription. One look reads them.

A process looks once a second, by one object of the queue, and relies on what it saw until then (`known.py`). So does
every call that takes items, and every one that adds some. A refusal always follows from a look in the call's own
transaction. An enqueue reads a rename, a quota, or the mark of a smart queue in its transaction, beside the last index
(`moves/admission.py`). ARCHITECTURE.md has a table of all settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, begun, started, value_of
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import OtherCodec
from fdbqueue.stored.catalogue import about_if_readable, adopt_policy, codec_of, fits, refuse_nested, write_about
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.known import RAW, Look, Registration
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.own_rows import first_own
from fdbqueue.stored.policies import NO_POLICY

T = TypeVar("T")
Use: TypeAlias = Literal["encode", "decode"]
"""What a call does with values."""


class Owner(NamedTuple):
    """The exclusive subscription of a queue."""

    name: str
    until_us: int
    """Until when its owner has it; the owner may come back later."""


class QueueSettings(NamedTuple):
    """What a look at a queue has seen."""

    record: bytes | None
    """Its record in the catalogue."""
    paused: bytes | None
    """Its pause, or the mark of a rename."""
    owner: Owner | None


class _Owned(msgspec.Struct):
    """The fields of a stored subscription that matter here (`layers/subscriptions`)."""

    owner: bytes = msgspec.field(default=b"", name="o")
    until_us: int = msgspec.field(default=0, name="u")


_decode = msgspec.msgpack.Decoder(_Owned).decode


async def look(tr: Transaction, layout: Layout) -> QueueSettings:
    """Read a queue's settings, and note what the process may rely on.

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel.
    """
    known, view = layout.known, tr.snapshot
    began, own = Look.begin(), known.registration
    asked = None if known.is_part else view.get(layout.catalogue_key)
    asked_for_type = view.get(layout.type_key)
    asked_for_pause = view.get(layout.paused_key)
    asked_for_owner = None if known.is_part else started(_owner(tr, layout))
    record = None if asked is None else _bytes(await value_of(asked))
    paused = _bytes(await value_of(asked_for_pause))
    owner = None if asked_for_owner is None else await asked_for_owner
    about = None if record is None else about_if_readable(layout, record)
    given = NO_POLICY if own is None else own.policy
    known.doubt()  # another thread must not rely on facts of two looks
    if not known.is_part:
        known.policy = given if about is None else about.applied(given)
    # A process looks at each call that may write until its policy is stored.
    known.is_registered = record is not None and (about is None or about.completed(given) == about)
    known.has_record = own is not None and record is not None and fits(own.codec, "" if about is None else about.codec)
    known.is_plain = not (await value_of(asked_for_type)).present()
    known.is_unpaused = paused is None
    known.is_open = paused is None and owner is None
    known.note(began, tr)
    if about is not None and not known.told and (told := about.differs(given)):
        known.told = True
        warnings.warn(f"The policy of {layout.describe()}: {told}", RuntimeWarning, stacklevel=2)
    return QueueSettings(record, paused, owner)


async def know_policy(tr: Transaction, layout: Layout) -> None:
    """Look at a queue's policy once a second: what becomes of its items that fail (`Known.policy`).

    *Conflicts:* none, it reads by snapshot. *Cost:* a look a second.
    """
    if not (layout.known.is_part or layout.known.relies(tr)):
        await look(tr, layout)


def _bytes(value: Any) -> bytes | None:
    return bytes(value) if value.present() else None


async def _owner(tr: Transaction, layout: Layout) -> Owner | None:
    span = layout.subscriptions.range()
    # An exclusive subscription is the queue's only subscription.
    first = await first_own(tr.snapshot, layout, "subscriptions", span.start, span.stop)
    if first is None:
        return None
    (name,), row = first
    try:
        owned = _decode(row.value)
    except UNREADABLE:
        return None  # the subscription's own consumers get the error
    return Owner(name, owned.until_us) if owned.owner else None


async def settings_of(tr: Transaction | Database, layout: Layout) -> QueueSettings:
    """Look at a queue's settings, in the given transaction or in a new one."""
    if not is_database(tr):
        return await look(cast(Transaction, tr), layout)
    found = await attempts(cast(Database, tr), partial(look, layout=layout))
    layout.known.note(layout.known.look, tr)  # a program's database may be a wrapper around that of its transactions
    return found


async def note_registered(tr: Transaction, layout: Layout, found: QueueSettings) -> None:
    """Register a queue unless it is registered already, by a look in this transaction.

    Raises:
        OtherCodec: it is registered with another codec. NestedQueue: it is not registered yet, and its name lies within
            that of another queue, or around it.
    """
    own: Registration | None = layout.known.registration
    if own is None:
        return
    if found.record is None:
        # Whether this transaction commits is not known here. So the next enqueue looks again.
        await refuse_nested(tr, layout)
        write_about(tr, layout)
        return
    check_codec(layout, found.record, own.codec, "encode")


async def refuse_others_keys(tr: Transaction, layout: Layout, *, clears: bool = False) -> None:
    """Refuse a call whose keys would be among those of another queue. Every call that may write passes here.

    An enqueue registers the queue instead (`note_registered`). A registered queue may go on. It is not cleared with the
    keys of another one.

    Args:
        clears: whether the call removes all keys of the queue.

    Raises:
        NestedQueue: the queue is not registered, and its name lies within that of a registered one, or around it. Or
            the call clears a queue with another one within it.

    *Conflicts:* as `refuse_nested`. *Cost:* a look a second; as `refuse_nested` if the queue is not registered, or is
    cleared.
    """
    if not clears and layout.known.is_beside(tr):
        return
    registered = (await look(tr, layout)).record is not None
    if clears or not registered:
        await refuse_nested(tr, layout, inside=registered)
    elif not layout.known.is_registered:
        await adopt_policy(tr, layout)


async def beside_others(tr: Transaction, *, layout: Layout, body: Callable[[Transaction], Steps[T]]) -> T:
    """Run a body that may write keys of a queue, after `refuse_others_keys`."""
    await refuse_others_keys(tr, layout)
    return await begun(body, tr)


async def check_decodes(tr: Transaction | Database, layout: Layout) -> None:
    """Check once a second that this object has the codec of the queue's items.

    Raises:
        OtherCodec: the queue is registered with another codec.

    *Conflicts:* none, it reads by snapshot. *Cost:* a look a second; one a call while the queue is not registered.
    """
    if not layout.known.decodes(tr):
        check_found(layout, await settings_of(tr, layout), "decode")


async def check_encodes(tr: Transaction, layout: Layout) -> None:
    """Check once a second that this object may encode values for the queue; for calls that add no item.

    Raises:
        OtherCodec: the queue is registered with another codec.

    *Conflicts:* none, it reads by snapshot. *Cost:* a look a second.
    """
    known = layout.known
    if known.registration is not None and not (known.has_record and known.relies(tr)):
        check_found(layout, await look(tr, layout), "encode")


def check_found(layout: Layout, found: QueueSettings, use: Use) -> None:
    """Refuse a codec that is not that of the queue's items, by a look.

    Raises:
        OtherCodec: the queue is registered with another codec.
    """
    own = layout.known.registration
    if own is not None and found.record is not None:
        check_codec(layout, found.record, own.codec, use)


async def refuse_codec(tr: Transaction, layout: Layout, codec: str) -> None:
    """Refuse to encode by a codec that is not that of a queue's items, before a job or a transfer begins.

    Raises:
        OtherCodec: the queue is registered with another codec.

    *Conflicts:* none, it reads by snapshot. *Cost:* one read.
    """
    stored = await value_of(tr.snapshot.get(layout.catalogue_key))
    if stored.present():
        check_codec(layout, bytes(stored), codec, "encode")


def check_codec(layout: Layout, stored: bytes, codec: str, use: Use) -> None:
    """Refuse a codec that is not that of the queue's items.

    Raises:
        OtherCodec: the queue is registered with another codec, by the record `stored`.
    """
    if use == "decode" and codec == RAW:
        return
    registered = codec_of(layout, stored)
    if fits(codec, registered):
        return
    raise OtherCodec(
        f"The queue {layout.describe()} is registered with the codec {registered!r}, and not with {codec!r}, which is"
        f" given here. Nothing was changed. Give codec={registered!r}, or open it by Queue.open(db, name). The codec"
        " 'bytes' shows its items as they are stored. If the registration is wrong, correct it by"
        " Queue(name, codec=…).register(db, on_codec='replace')."
    )
