"""Slow clients of the page, of metrics and of health probes: a fast one is answered, and no traceback is written."""

from __future__ import annotations

import contextlib
import logging
import resource
import select
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fdbqueue.base import http
from fdbqueue.layers.consumer.health import Health, Probe
from fdbqueue.observe import MetricsServer
from fdbqueue.web import AdminApp

MOST = 8
SLOW = 40


@contextlib.contextmanager
def page(db: Any, space: Any) -> Iterator[int]:
    app = AdminApp(db, within=space)
    with http.serving(app, "127.0.0.1", 0, name="page") as port:
        yield port
    app.close()


@contextlib.contextmanager
def metrics(db: Any, space: Any) -> Iterator[int]:
    with MetricsServer("127.0.0.1:0", include=["none"]).serving(db) as server:
        yield int(server.address.rpartition(":")[2])


@contextlib.contextmanager
def health(db: Any, space: Any) -> Iterator[int]:
    probe = Probe(0)
    with probe.open(Health({})):
        yield probe.port


def ask(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as answer:
        return int(answer.status)


def connected(port: int, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.sendall(sent)
    return client


def until(test: Callable[[], bool]) -> bool:
    end = time.monotonic() + 120
    while not test() and time.monotonic() < end:
        time.sleep(0.01)
    return test()


HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
BODY = b"POST /preview HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\na"


@pytest.mark.engines("memory")
@pytest.mark.parametrize("serve", [page, metrics, health])
def test_slow_clients_keep_no_fast_one_out_and_are_let_go(
    db: Any,
    space: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    serve: Callable[[Any, Any], AbstractContextManager[int]],
) -> None:
    monkeypatch.setattr(http, "most_connections", lambda: MOST)
    with caplog.at_level(logging.WARNING), serve(db, space) as port, contextlib.ExitStack() as open_ones:
        slow = [open_ones.enter_context(connected(port, sent)) for _ in range(SLOW // 2) for sent in (BODY, HEAD)]
        assert ask(port) == 200  # an old one has given way
        monkeypatch.setattr(http, "REQUEST_SECONDS", 0.1)
        slow += [open_ones.enter_context(connected(port, HEAD)) for _ in range(MOST)]
        assert until(lambda: len(select.select(slow, [], [], 0)[0]) == len(slow))
        assert ask(port) == 200
    assert [one for one in caplog.records if one.exc_info or one.name.startswith(("asyncio", "uvicorn"))] == []


@pytest.mark.engines("memory")
def test_a_connection_that_is_used_again_is_slow_only_once(
    db: Any, space: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.1)
    whole = b"GET /static/page.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with page(db, space) as port, connected(port, whole) as client:
        answer = b""
        while b"choose all items" not in answer:
            answer += client.recv(65_536)
        client.sendall(b"GET")  # and no more
        assert until(lambda: bool(select.select([client], [], [], 0)[0]))


def test_a_process_with_few_file_descriptors_has_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert http.most_connections() == 64
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, 0))
    assert http.most_connections() == http.MOST_CONNECTIONS
