"""Note which queues have leases with a policy, so that every layer follows it.

The policy of `Leases`, `max_attempts` and `backoff`, belongs to the object. It is not stored with the queue, and a
layer that is made of the bare queue has none. `Leases(queue, max_attempts=1)` beside `StagedQueue(queue)` would apply
it to some failures and not to others. Two `Leases` with different policies would, too. They are noted here by their
`Queue` object, and the second one is refused.

Other processes, and other `Queue` objects of the same name, are not known here.
"""

from __future__ import annotations

from typing import TypeAlias

from fdbqueue import Queue
from fdbqueue.base.beside import KeptBeside

from ._backoff import Backoff

Policy: TypeAlias = tuple[int | None, Backoff | None]
"""`max_attempts` and `backoff`."""
_policies: KeptBeside[tuple[Policy, str] | None] = KeptBeside(lambda: None)
"""The policy of a queue's leases, and the leases as text."""
_bare: KeptBeside[tuple[str, str] | None] = KeptBeside(lambda: None)
"""The name of the layer that was made of a queue without a policy, and the remedy."""


def note_policy(queue: Queue, policy: Policy, owner: str) -> None:
    """Note that leases with a policy are made of a queue.

    Args:
        queue: the queue.
        policy: their policy.
        owner: the leases, or the layer that has them, as text.

    Raises:
        TypeError: a layer was made of the bare queue before, or leases with another policy.
    """
    bare = _bare.get(queue)
    if bare is not None:
        layer, remedy = bare
        raise TypeError(
            f"{layer}({queue!r}) was made before without the policy of {owner}, and would not follow it. {remedy}"
        )
    known, by = _policies.get(queue) or (policy, owner)
    if known != policy:
        raise TypeError(
            f"{queue!r} has {by}, and {owner} would follow another policy. Use one Leases object for all layers; to"
            " change the policy, make the Queue again, too."
        )
    _policies.put(queue, (policy, owner))
    if queue.layout.known.registration is not None:
        queue.layout.known.registration.policy = owner


def note_bare(queue: Queue, layer: str, remedy: str = "") -> None:
    """Note that a layer is made of a queue without a policy.

    Args:
        queue: the queue.
        layer: the layer's name.
        remedy: how to give it the policy, as a sentence; by default: make it of the leases.

    Raises:
        TypeError: the queue has leases with a policy.
    """
    known = _policies.get(queue)
    if known is not None:
        raise TypeError(
            f"{queue!r} has {known[1]}, and {layer} would not follow that policy if it were made of the bare queue."
            f" {remedy or f'Make it of the leases: {layer}(leases).'}"
        )
    _bare.put(queue, (layer, remedy or f"Make the leases first, and the layer of them: {layer}(leases)."))
