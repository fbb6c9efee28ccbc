"""The methods that layers call of each other refuse wrong arguments by a sentence of their own, as verbs do."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import Deadlines, Leases, Messages, MessageType, Sessions, SmartQueue
from fdbqueue.layers.smart import Resend
from tests.layers.together.test_every_wrong_kind import raw, told

pytestmark = pytest.mark.engines("memory")
WRONG: list[Any] = [7, 1.5, "x", b"x", [7], (7,), {}, object(), Position(1, b"none"), True]
HELPERS: dict[str, dict[str, Any]] = {
    "Sessions.entered_at": {"position": Position(1, b"none", rank=0), "session": "ann"},
    "Sessions.check_named": {"position": Position(1, b"none", rank=0), "session": "ann"},
    "Sessions.layout_for": {"session": "ann"},
    "Leases.ack_unchanged": {"live": []},
    "Deadlines.claim_next": {"until_us": 5, "lapsed_us": 1, "ended": None},
    "Deadlines.end": {"claim": None},
    "Resend.confirm_in": {"recipient": "Ann", "named": None},
}


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_refuses_each_wrong_argument(db: Any, space: Subspace, name: str) -> None:
    smart = SmartQueue(Leases(Queue(space["smart"], codec=Messages(MessageType("m")))))
    owners: dict[str, Any] = {
        "Sessions": Sessions(Queue(space["sessions"])),
        "Leases": smart.leases,
        "Deadlines": Deadlines(smart),
        "Resend": Resend(smart.leases),
    }
    owner, method = name.split(".")
    found = []
    for parameter in HELPERS[name]:
        for value in WRONG:
            given = {**HELPERS[name], parameter: value}
            if name != "Sessions.check_named":
                given["tr"] = db.create_transaction()
            try:
                result = getattr(owners[owner], method)(**given)
                if hasattr(result, "send"):
                    run(result)
            except Exception as error:  # noqa: BLE001  the test is about all of them
                if raw(error):
                    found.append(f"{parameter}={value!r}: {told(error)}")
    assert found == []
