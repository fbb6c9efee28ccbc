"""Those who own an exclusive subscription, one after the other."""

from __future__ import annotations

from typing import Any

from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from tests.chaos.kinds import EXCLUSIVE, EXCLUSIVE_CREDIT, OWNERSHIP_S


def own(db: Any, subscriptions: Subscriptions) -> Subscription:
    """Take the subscription over, if nobody owns it."""
    return subscriptions.subscribe(db, EXCLUSIVE, exclusive=True, ownership=OWNERSHIP_S)


def reset(db: Any, subscriptions: Subscriptions) -> None:
    """Let the subscription be new, and nobody's, in one transaction that is tried once."""
    tr = db.create_transaction()
    subscriptions.unsubscribe(tr, EXCLUSIVE)
    new = own(tr, subscriptions)
    new.grant(tr, items=EXCLUSIVE_CREDIT[EXCLUSIVE])
    new.close(tr)
    tr.commit().wait()
