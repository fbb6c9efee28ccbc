"""A queue's settings: its registration, its pause, and the owner of an exclusive subscription. One look reads them.

A process looks once a second, by one object of the queue, and relies on what it saw until then (`known.py`). So does
every call that takes items, and every one that adds some. A refusal always follows from a look in the call's own
transaction. An enqueue reads a rename, a quota, or the mark of a smart queue in its transaction, beside the last index
(`moves/admission.py`). ARCHITECTURE.md has a table of all settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

from fdbqueue.base.deprecation import warn_caller
from fdbqueue.base.reprs import utc
from fdbqueue.engine.api import Database, Transaction, Value
from fdbqueue.engine.steps import Steps, begun, started, value_of
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import OtherCodec, SubscriptionError
from fdbqueue.stored.catalogue import about_if_readable, adopt_policy, codec_of, fits, nested_with, refuse_nested
from fdbqueue.stored.known import RAW, Look, OwnChanges, Registration
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.policies import PolicyWarning
from fdbqueue.stored.settings import owner_readers, refuse_renamed

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
    nested: Steps[list[bytes]] | None
    """The read of the names around its own and within it, under way; None: the process knew that it is registered."""


async def look(tr: Transaction, layout: Layout) -> QueueSettings:
    """Read a queue's settings, and note what the process may rely on.

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel; with them those of `nested_with`, until the
    process knows that the queue is registered.
    """
    known, view = layout.known, tr.snapshot
    began, own = Look.begin(), known.registration
    asked = None if known.is_part else view.get(layout.catalogue_key)
    asked_for_type = view.get(layout.type_key)
    asked_for_pause = view.get(layout.paused_key)
    asked_for_owner = None if known.is_part else started(_owner(tr, layout))
    nested = None if known.is_part or own is None or known.has_record else started(nested_with(tr, layout))
    record = None if asked is None else _bytes(await value_of(asked))
    paused = _bytes(await value_of(asked_for_pause))
    owner = None if asked_for_owner is None else await asked_for_owner
    about = None if record is None else about_if_readable(layout, record)
    given = known.given
    known.doubt()  # another thread must not rely on facts of two looks
    if not known.is_part:
        known.policy = (given if about is None else about.applied(given)).or_else(known.usual)
    # A process looks at each call that may write until its policy is stored.
    known.is_registered = record is not None and (about is None or about.completed(given) == about)
    known.has_record = own is not None and record is not None and fits(own.codec, "" if about is None else about.codec)
    known.is_plain = not (await value_of(asked_for_type)).present()
    known.is_unpaused = paused is None
    known.is_open = paused is None and owner is None
    known.note(began, tr)
    if about is not None and not known.told and (told := about.differs(given)):
        known.told = True
        tell_policy(layout, told)
    return QueueSettings(record, paused, owner, nested)


def tell_policy(layout: Layout, told: str) -> None:
    """Warn that what a program gives is not the policy of a queue."""
    warn_caller(f"The policy of {layout.describe()}: {told}", PolicyWarning)


def _bytes(value: Value) -> bytes | None:
    return bytes(value) if value.present() else None


async def _owner(tr: Transaction, layout: Layout) -> Owner | None:
    span = layout.subscriptions.range()
    # An exclusive subscription is the queue's only subscription.
    first = await layout.first_own(tr.snapshot, "subscriptions", span.start, span.stop)
    if first is None:
        return None
    (name,), row = first
    for until_us in owner_readers.all().values():
        if (at_us := until_us(row.value)) is not None:
            return Owner(name, at_us)
    return None


async def settings_of(tr: Transaction | Database, layout: Layout) -> QueueSettings:
    """Look at a queue's settings, in the given transaction or in a new one."""
    if not is_database(tr):
        return await look(cast(Transaction, tr), layout)
    found = await attempts(cast(Database, tr), partial(look, layout=layout))
    layout.known.note(layout.known.look, tr)  # a program's database may be a wrapper around that of its transactions
    return found


async def must_register(tr: Transaction, layout: Layout, found: QueueSettings) -> bool:
    """Return whether a call that adds items must register the queue, by a look in this transaction.

    It writes nothing. `write_about` registers the queue, once nothing else can refuse the call.

    Raises:
        OtherCodec: it is registered with another codec. NestedQueue: it is not registered yet, and its name lies within
            that of another queue, or around it.
    """
    own: Registration | None = layout.known.registration
    if own is None:
        return False
    if found.record is None:
        # Whether this transaction commits is not known here. So the next enqueue looks again.
        await refuse_nested(tr, layout, looking=found.nested)
        return True
    check_codec(layout, found.record, own.codec, "encode")
    return False


async def refuse_others_keys(tr: Transaction, layout: Layout, *, clears: bool = False) -> None:
    """Refuse a call whose keys would be among those of another queue. Every call that may write passes here.

    An enqueue registers the queue instead (`must_register`). A registered queue may go on. It is not cleared with the
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
    found = await look(tr, layout)
    registered = found.record is not None
    if clears or not registered:
        await refuse_nested(tr, layout, inside=registered, looking=found.nested)
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


# Exclusive subscriptions and pauses keep consumers out.
#
# An exclusive subscription (`layers/subscriptions`) must be its queue's only consumer. Calls that take items at the
# head
# of the queue, such as `Queue.dequeue` and `Leases.lease`, are refused while its owner lives.
#
# A read in each of them would cost nearly a fifth of their time. So a process looks at the settings once a second
# for
# each queue object (above), and again once it has changed some itself. A refusal always follows from a
# read.
# Another process may therefore take items for up to a second more. Each item still goes to one consumer: the takers
# conflict.
#
# A process also holds items that it has leased, or read ahead, and not begun. Its loops ask a `Permit` before each
# one.


def wall_us() -> int:
    """Return this machine's wall clock, in microseconds."""
    return time.time_ns() // 1000


def made_exclusive() -> None:
    """Make every queue of this process check again."""
    OwnChanges.count += 1


async def keep_out(tr: Transaction | Database, layout: Layout, now_us: Callable[[], int] = wall_us) -> bool:
    """Return whether the queue is paused, so that a call finds no items.

    Raises:
        SubscriptionError: another consumer has an exclusive subscription, and its owner lives.
        OtherCodec: the queue is registered with another codec.
        QueueRenamed: the queue has another name now.

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel a second; as many a call while the queue is
    paused, or if there is or was an owner.
    """
    known = layout.known
    if known.is_open and known.relies(tr):
        return False
    found = await settings_of(tr, layout)
    # The owner may come back, or another clock may judge it differently. So no call relies on one that has gone.
    if found.owner is not None and found.owner.until_us > now_us():
        raise SubscriptionError(
            f"{layout.describe()} has the exclusive subscription {found.owner.name!r}, until"
            f" {utc(found.owner.until_us / 1e6)} UTC or longer: only its owner takes items. Lease by that subscription,"
            " or wait until it is closed."
        )
    if found.paused is not None:
        refuse_renamed(found.paused)
    check_found(layout, found, "decode")
    return found.paused is not None


async def is_paused(tr: Transaction, layout: Layout) -> bool:
    """Return whether the queue is paused; for a subscription, which knows its owner itself.

    Raises:
        QueueRenamed: the queue has another name now.

    *Conflicts:* none, it reads by snapshot. *Cost:* four reads in parallel a second; as many a call while the queue is
    paused.
    """
    known = layout.known
    if known.is_unpaused and known.relies(tr):
        return False
    paused = (await look(tr, layout)).paused
    if paused is not None:
        refuse_renamed(paused)
    return paused is not None


class Permit:
    """Says whether a process may begin the items that it holds. Its loops ask before each item.

    No item begins later than a second after a pause was committed, or one read, if that takes longer. An answer
    is good for so long from before its read. A pause by this process outdates it at once. No answer comes from the look
    of another call, which may have read in an older transaction.

    Args:
        look: returns whether items may begin, by a read in a new transaction. It may raise, as `keep_out` does.
    """

    def __init__(self, look: Callable[[], Steps[bool]]) -> None:
        self._look = look
        self._allowed = Look()
        """The last look that allowed it."""

    def is_good(self) -> bool:
        """Return whether a recent look allowed items to begin. It reads nothing."""
        return self._allowed.is_good()

    async def ask(self) -> bool:
        """Return whether items may begin now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one transaction a second; one a call while they may not.
        """
        if self.is_good():
            return True
        began = Look.begin()
        allowed = await self._look()
        if allowed:
            self._allowed = began
        return allowed


def permit_of(db: Database, layout: Layout, now_us: Callable[[], int] = wall_us) -> Permit:
    """Return the permit to begin items of a queue. It raises what `keep_out` raises."""

    async def look() -> bool:
        layout.known.doubt()  # so that it reads, and so that other calls rely on the same look
        return not await keep_out(db, layout, now_us)

    return Permit(look)
