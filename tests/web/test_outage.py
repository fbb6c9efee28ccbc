"""The page while the database does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdbqueue.engine.errors import NO_ANSWER
from fdbqueue.web import AdminApp, app, sampling
from tests.helpers.standin import StandIn
from tests.web.conftest import Browser


class Silent(StandIn):
    """A database that answers nothing before `answers` is set."""

    def __init__(self, db: Any) -> None:
        self._db = self.wrapped = db
        self.answers = threading.Event()

    def create_transaction(self) -> Any:
        self.answers.wait(2)
        return self._db.create_transaction()


@pytest.fixture
def silent(db: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    for module in (app, sampling):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)
    found = Silent(db)
    yield found
    found.answers.set()


@pytest.mark.engines("memory")
@pytest.mark.parametrize("page", ["", "queue", "items", "sessions", "dead"])
def test_a_page_says_that_the_database_does_not_answer(silent: Silent, page: str) -> None:
    shown = AdminApp(silent)
    answer = Browser(shown).get(page, queue="orders")
    assert answer.status_code == 503
    assert NO_ANSWER in answer.text
    silent.answers.set()
    shown.close()
