"""The base of tests' own databases, which hand out transactions that fail, wait or count.

A verb needs `create_transaction` only. To type checkers a stand-in has all that a `Database` has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class StandIn(Any):  # type: ignore[misc]
        """A database, as far as type checkers know."""
else:

    class StandIn:
        """A database, as far as type checkers know."""
