"""Guards of smart sessions, taken out of copies of the library one by one: the tests find each."""

from __future__ import annotations

from tests.chaos.mutants import Mutant

ADMITTING, ENTERING = "layers/smart_sessions/_smart_sessions.py", "layers/sessions/line/line.py"
RUN, SESSION = "layers/consumer/_turns.py", "layers/sessions/session/session.py"
TESTS = (
    "smart_sessions/test_smart_sessions_interleavings",
    "smart_sessions/test_smart_sessions",
    "smart_sessions/test_smart_sessions_model",
    "sessions/test_sessions_failures",
)

MUTANTS = (
    Mutant(
        "an item in progress is one that waits",
        ADMITTING,
        (
            (
                "        if not begun:\n            return window\n",
                "        if begun is not None:\n            return window\n",
            ),
        ),
        tests=("smart_sessions/test_smart_sessions",),  # an interleaving waits for ever then
    ),
    Mutant(
        "a decision does not see that an item begins",
        ADMITTING,
        (("            self._begun.depend(met)\n", "            pass\n"),),
    ),
    Mutant(
        "the lease of an item does not see that a decision was made by it",
        ADMITTING,
        (("            self._begun.disturb(by)  # a layer", "            pass  # a layer"),),
    ),
    Mutant(
        "the line does not see that items were deleted",
        ADMITTING,
        (("        for one in self._changed:\n", "        for one in ():\n"),),
    ),
    Mutant(
        "an enqueue does not see the end of its session",
        ENTERING,
        (("    tr.add_read_conflict_key(session.guard_key)\n", ""),),
    ),
    Mutant(
        "a consumer reads ahead what may be rewritten",
        RUN,
        (
            ("if self._sessions.has_messages and not self._stopping.done():", "if False:"),
            (" or self._stopping.done() or self._sessions.has_messages:", " or self._stopping.done():"),
        ),
        tests=("smart_sessions/test_smart_sessions_composed",),
    ),
    Mutant(
        "a redriven item may come after one that was enqueued later",
        SESSION,
        (("        self._away = max(self._away, packed)\n", ""),),
    ),
    Mutant(
        "nothing says that the sessions make checks",
        "fdbqueue/moves/admission.py",
        (("        mark_smart(tr, layout)\n    elif", "        pass\n    elif"),),
    ),
)
