"""Note which queues have leases with a policy, so that every layer follows it.

The policy of `Leases`, `max_attempts` and `backoff`, belongs to the object. It is not stored with the queue, and a
layer that is made of the bare queue has none. `Leases(queue, max_attempts=1)` beside `StagedQueue(queue)` would apply
it to some failures and not to others. Both are noted here by their `Queue` object, and the second one is refused.

Other processes, and other `Queue` objects of the same name, are not known here.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from fdbqueue import Queue

_policies: WeakKeyDictionary[Queue, str] = WeakKeyDictionary()
"""The leases with a policy that were made of a queue, as text."""
_bare: WeakKeyDictionary[Queue, str] = WeakKeyDictionary()
"""The name of the layer that was made of a queue without leases."""


def note_policy(queue: Queue, leases: str) -> None:
    """Note that leases with a policy are made of a queue.

    Raises:
        TypeError: a layer was made of the bare queue before.
    """
    layer = _bare.get(queue)
    if layer is not None:
        raise TypeError(
            f"{layer}({queue!r}) was made before without the policy of {leases}, and would not follow it. Make the"
            f" leases first, and the layer of them: {layer}(leases)."
        )
    _policies[queue] = leases


def note_bare(queue: Queue, layer: str) -> None:
    """Note that a layer is made of a queue without leases.

    Raises:
        TypeError: the queue has leases with a policy.
    """
    leases = _policies.get(queue)
    if leases is not None:
        raise TypeError(
            f"{queue!r} has {leases}, and {layer} would not follow that policy if it were made of the bare queue. Make"
            f" it of the leases: {layer}(leases)."
        )
    _bare[queue] = layer
