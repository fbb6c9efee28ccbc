"""What a process knows of a queue, beside the queue's keys.

All that it knows of the settings comes from one look (`looks.py`). There is one rule for how old that may be. A
process relies on a look for a second, in the database that it looked at. A change of settings by the process ends that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final
from weakref import ref

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.stored.policies import NO_POLICY, Policy

RAW = "bytes"
"""The codec that shows the items of every queue as they are stored."""


LOOK_SECONDS: Final = 1.0
"""How long a process relies on a look at a queue's settings."""


class OwnChanges:
    """The number of times that this process has made a subscription exclusive, or paused or renamed a queue."""

    count = 0


@dataclass(slots=True)
class Look:
    """When a process looked. It says whether the process may still rely on what it saw."""

    until: float = 0.0
    changes: int = -1
    """The value of `OwnChanges.count` when it looked."""

    @classmethod
    def begin(cls) -> Look:
        """Return a look that begins now; what it reads may be relied on from here on."""
        return cls(monotonic() + LOOK_SECONDS, OwnChanges.count)

    def is_good(self) -> bool:
        """Return whether the process may rely on it."""
        return self.until > monotonic() and self.changes == OwnChanges.count


def no_database() -> None:
    """Refer to no database."""


@dataclass(slots=True)
class Registration:
    """What a queue's object would register (`catalogue.py`)."""

    codec: str
    order: str
    """The name of its order; "": first in, first out."""
    path: tuple[str, ...]


@dataclass(slots=True)
class Smartness:
    """What objects of a queue with and without an order share."""

    is_smart: bool = False
    """Whether the process has made a `SmartQueue` of one of them. The first smart enqueue marks the queue itself."""


@dataclass(slots=True)
class Known:
    """What one process knows of one queue, by one object of it."""

    registration: Registration | None = None
    """What the queue's object registers; None: nothing."""
    has_high_water_mark: bool = False
    """Whether it has seen a mark, which stays."""
    made: Smartness = field(default_factory=Smartness)
    """Whether it has made a `SmartQueue` of the queue."""
    subscribed: bool = False
    """Whether the queue had subscriptions that need arrivals when it last looked for the queue's end."""
    exclusive_all: str | None = None
    """The queue's sole subscription at that time; it needs no arrivals (`layers/subscriptions`)."""
    look: Look = field(default_factory=Look)
    """The last look at the queue's settings."""
    looked_in: Any = no_database
    """A weak reference to the database that it looked at."""
    writes: Any = no_database
    """A weak reference to the transaction that writes settings; the process does not rely on what it reads there."""
    is_part: bool = False
    """Whether the keys are a part of another queue, which is registered instead, as the line of sessions is."""
    is_registered: bool = False
    """Whether the queue was registered then, and its record had a policy if this object gives one."""
    has_record: bool = False
    """Whether it was, with this object's codec."""
    is_plain: bool = False
    """Whether it was not smart then, had no quota, and was not renamed."""
    is_unpaused: bool = False
    """Whether the queue was not paused then."""
    is_open: bool = False
    """Whether calls might take items then: it was not paused, and had no exclusive subscription, nor one whose owner
    has gone."""
    given: Policy = NO_POLICY
    """The policy that leases of this object give; what is stored with the queue goes before it."""
    usual: Policy = NO_POLICY
    """The policy that applies where nothing is stored or given. It is never stored."""
    policy: Policy = NO_POLICY
    """What becomes of items that fail: as it was stored then, as `given` where nothing was, and else as `usual`."""
    told: bool = False
    """Whether this object was told that its policy is not the queue's."""
    timers_passed: bytes | None = None
    """The last key that it has seen behind due timers that can't be fired; None: it reads from the first."""

    def relies(self, tr: Transaction | Database) -> bool:
        """Return whether the last look is good for a transaction, or for a database."""
        look = self.look
        return (
            look.until > monotonic() and look.changes == OwnChanges.count and self.looked_in() is getattr(tr, "db", tr)
        )

    def is_beside(self, tr: Transaction | Database) -> bool:
        """Return whether the queue's keys are known to lie in no other queue, by the last look."""
        return self.is_part or (self.is_registered and self.relies(tr))

    def decodes(self, tr: Transaction | Database) -> bool:
        """Return whether this object may decode the queue's items, by the last look."""
        own = self.registration
        return own is None or own.codec == RAW or (self.has_record and self.relies(tr))

    def note(self, look: Look, tr: Transaction | Database) -> None:
        """Note a look, after the facts that it saw were set."""
        self.looked_in = ref(getattr(tr, "db", tr))
        # What this transaction writes may never be committed.
        self.look = look if self.writes() is not tr else Look()

    def give(self, policy: Policy, owner: str) -> None:
        """Note the policy that leases of this object give. The queue's record gets it if it has none.

        Args:
            owner: the queue, as text.

        Raises:
            TypeError: other leases of the object give another one.
        """
        if self.given and policy and self.given != policy:
            raise TypeError(
                f"{owner} has {self.given.text} by other leases, and these with {policy.text} would follow another"
                " policy. Use one Leases object for all layers; to change it: Queue.register(db, max_attempts=…)."
            )
        if policy and not self.given:
            self.given = self.policy = policy
            self.doubt()  # an earlier look knew nothing of it: whether it is stored, or another one

    def note_writing(self, tr: Transaction | Database) -> None:
        """Note that a transaction writes settings of the queue."""
        self.writes = ref(tr)

    def doubt(self) -> None:
        """Make the next call look again."""
        self.look = Look()

    def __reduce__(self) -> tuple[object, ...]:
        return Known, (self.registration, self.has_high_water_mark, self.made)  # another process looks for itself
