"""The client, at our server and at servers that a test plays."""

from __future__ import annotations

import asyncio
import io
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.agents import AgentClient, AgentError, Received
from fdbqueue.engine import Subspace
from tests.helpers.agentservers import leases_of, left_alone, serving

GREETED = b"Hi.\nOK.\n"


def test_both_ways_to_wait_send_receive_and_confirm(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            client = AgentClient(server.address)
            await client.send.aio(5, b"first")
            await asyncio.to_thread(client.send, 5, memoryview(b"second"))
            first = await client.receive.aio(5)
            second = await asyncio.to_thread(client.receive, 5)
            assert first == Received(first.id if first else 0, 5, b"first")
            assert second == Received(second.id if second else 0, 6, b"second")
            assert await client.receive.aio(5) is None
            assert await asyncio.to_thread(client.receive, 5) is None
            await client.confirm.aio(5, first.id)
            await asyncio.to_thread(client.confirm, 5, second.id)
            with pytest.raises(AgentError) as refused:
                await client.confirm.aio(5, first.id)
            assert (refused.value.step, refused.value.received, refused.value.in_doubt) == ("confirm", "Bye.", False)

    asyncio.run(body())
    assert leases_of(space).stats(db).dequeued == 2


def test_files_are_sent_from_their_position_and_received_into(db: Any, space: Subspace, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "in").write_bytes(b"before" + data)

    async def body() -> None:
        async with serving(db, space) as server:
            client = AgentClient(server.address)
            with (tmp_path / "in").open("rb") as file:
                file.seek(6)
                await client.send.aio(5, file)
            await asyncio.to_thread(client.send, 5, io.BytesIO(data))
            for number in range(2):
                with (tmp_path / "out").open("wb") as file:
                    received = await (client.receive.aio(5, into=file) if number else asyncio.to_thread(
                        client.receive, 5, into=file))  # fmt: skip
                assert received == Received(received.id if received else 0, len(data), b"")
                assert (tmp_path / "out").read_bytes() == data

    asyncio.run(body())


def test_a_pipe_is_sent_with_its_size(db: Any, space: Subspace) -> None:
    readable, writable = os.pipe()
    os.write(writable, b"data and more")
    os.close(writable)

    async def body() -> None:
        async with serving(db, space) as server:
            with open(readable, "rb") as pipe:  # noqa: ASYNC230 - a pipe that is full
                with pytest.raises(ValueError, match="give size="):
                    await AgentClient(server.address).send.aio(5, pipe)
                await AgentClient(server.address).send.aio(5, pipe, size=4)
                with pytest.raises(ValueError, match="ended 91 bytes before"):
                    await AgentClient(server.address).send.aio(5, pipe, size=100)

    asyncio.run(body())
    assert [item.value for item in leases_of(space).queue.browse(db)] == [b"data"]


def test_larger_data_than_wanted_stays_in_the_queue(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            client = AgentClient(server.address)
            await client.send.aio(5, b"12345")
            with pytest.raises(AgentError, match="over max_size") as refused:
                await client.receive.aio(5, max_size=4)
            assert refused.value.step == "offer"
            await left_alone(server)
            received = await AgentClient(server.address).receive.aio(5, max_size=5)
            assert received is not None

    asyncio.run(body())


def test_a_hundred_calls_are_under_way_at_once(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            client = AgentClient(server.address)
            received = [asyncio.create_task(client.receive.aio(5)) for _ in range(100)]
            await asyncio.gather(*(client.send.aio(5, b"%d" % number) for number in range(100)))
            got = await asyncio.gather(*received)
            assert sorted(int(one.data) for one in got if one) == list(range(100))
            await asyncio.gather(*(client.confirm.aio(5, one.id) for one in got if one))

    asyncio.run(body())
    assert leases_of(space).stats(db).leased == 0


def test_a_cancelled_receive_takes_nothing(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, wait=30.0) as server:
            waiting = asyncio.create_task(AgentClient(server.address).receive.aio(5))
            while server.connections == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            waiting.cancel()
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await leases_of(space).enqueue.aio(db, b"data")

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


Serve = Callable[[socket.socket], None]


@contextmanager
def playing(serve: Serve) -> Iterator[AgentClient]:
    """Play a server for one connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:

        def accept() -> None:
            connection, _ = listening.accept()
            connection.settimeout(10)
            with connection:
                serve(connection)

        played = pool.submit(accept)
        yield AgentClient(f"127.0.0.1:{listening.getsockname()[1]}", timeout=60)
        played.result(60)


def called(verb: Any, way: str, *arguments: Any) -> Any:
    """The result of a verb, in one of both ways to wait."""
    return verb(*arguments) if way == "blocking" else asyncio.run(verb.aio(*arguments))


def saying(answers: bytes, heard: list[bytes], *, close: bool = True) -> Serve:
    """Say these answers, and then listen until the client closes."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(answers)
        if close:
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(65_536):
            heard.append(data)

    return serve


@pytest.mark.parametrize("way", ["blocking", "awaited"])
@pytest.mark.parametrize(
    ("verb", "answers", "step", "received", "in_doubt"),
    [
        ("send", b"", "greeting", "", False),
        ("send", b"Hello.\n", "greeting", "Hello.", False),
        ("send", b"Hi.\nBye.\n", "version", "Bye.", False),
        ("send", GREETED + b"Bye.\n", "type", "Bye.", False),
        ("send", GREETED + b"OK.\nbye.\r\n", "size", "bye.", False),
        ("send", GREETED + b"OK.\nOK.\nFail!\n", "data", "Fail!", False),
        ("send", GREETED + b"OK.\nOK.\nBye.\n", "data", "Bye.", False),
        ("send", GREETED + b"OK.\nOK.\n", "data", "", True),
        ("receive", GREETED + b"Bye.\n", "type", "Bye.", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is x.\n", "offer", "Data size is x.", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is 4. Data ID is 1.\nBye.\n", "data", "Bye.", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is 4. Data ID is 1.\nData:\nda", "data", "", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is 4. Data ID is 1.\nData:\ndata\n", "data", "", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is 4. Data ID is 1.\nData:\ndata.\nBye.\n", "lock", "Bye.", False),
        ("receive", GREETED + b"OK.\nOK.\nData size is 4. Data ID is 1.\nData:\ndata.\n", "lock", "", True),
        ("confirm", GREETED + b"OK.\nBye.\n", "confirm", "Bye.", False),
        ("confirm", GREETED + b"OK.\n", "confirm", "", True),
        ("confirm", b"x" * 5_000, "greeting", "x" * 1_024, False),
    ],
)
def test_an_error_names_the_step_and_the_received_line(
    way: str, verb: str, answers: bytes, step: str, received: str, in_doubt: bool
) -> None:
    heard: list[bytes] = []
    with playing(saying(answers, heard)) as client:
        call = getattr(client, verb)
        arguments = {"send": (5, b"data"), "receive": (5,), "confirm": (5, 456)}[verb]
        with pytest.raises(AgentError) as failed:
            called(call, way, *arguments)
    assert (failed.value.step, failed.value.received) == (step, received)
    assert failed.value.in_doubt == in_doubt
    assert b"".join(heard).endswith(b"Bye.\n") == (received.lower() in ("bye.", "fail!"))


def test_a_server_without_data_answers_bye_and_gets_bye() -> None:
    heard: list[bytes] = []
    with playing(saying(GREETED + b"OK.\nBye.\n", heard)) as client:
        assert client.receive(5) is None
    assert b"".join(heard).endswith(b"I want to receive.\nBye.\n")


def test_a_success_stays_a_success_whatever_the_server_says_next() -> None:
    heard: list[bytes] = []
    with playing(saying(GREETED + b"ok.\r\nOK.\nOK.\nNonsense", heard)) as client:
        client.send(5, b"data")
    assert b"".join(heard) == (
        b"Hi.\nI speak SCS Queue protocol version 0.01.\nI want to send to any agent of type number 5.\n"
        b"Data size is 4.\nData:\ndata.\nBye.\n"
    )


def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.sendall(GREETED + b"OK.\nOK.\n")
        connection.recv(1_000)
        connection.sendall(b"Bye.\n")
        while connection.recv(65_536):
            pass

    with playing(refuse) as client, pytest.raises(AgentError) as failed:
        client.send(5, io.BytesIO(b"x" * 10_000_000))
    assert (failed.value.step, failed.value.received) == ("data", "Bye.")


@pytest.mark.parametrize("way", ["blocking", "awaited"])
def test_a_server_that_is_silent_is_given_up(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = AgentClient(f"127.0.0.1:{listening.getsockname()[1]}", timeout=0.1)
        with pytest.raises(AgentError, match="No answer came in time, at the step 'greeting'") as failed:
            called(client.confirm, way, 5, 456)
    assert failed.value.in_doubt


def test_a_missing_server_is_an_error() -> None:
    with pytest.raises(AgentError, match=r"127\.0\.0\.1:1: ") as failed:
        AgentClient("127.0.0.1:1").send(5, b"data")
    assert (failed.value.step, failed.value.in_doubt) == ("connect", False)
    with pytest.raises(AgentError, match="unix:/no/such"):
        asyncio.run(AgentClient("unix:/no/such").send.aio(5, b"data"))


@pytest.mark.parametrize(
    ("verb", "arguments", "error", "match"),
    [
        ("send", (-1, b""), ValueError, "type is a whole number"),
        ("send", (65_537, b""), ValueError, "type is a whole number"),
        ("send", ("5", b""), ValueError, "type is a whole number"),
        ("send", (True, b""), ValueError, "type is a whole number"),
        ("send", (5, "text"), TypeError, "Data is bytes"),
        ("send", (5, None), TypeError, "Data is bytes"),
        ("send", (5, io.StringIO("text")), TypeError, "Data is bytes"),
        ("receive", (None,), ValueError, "type is a whole number"),
        ("confirm", (5, -1), ValueError, "id is a whole number"),
        ("confirm", (5, 2**31 + 1), ValueError, "id is a whole number"),
        ("confirm", (5, "456"), ValueError, "id is a whole number"),
    ],
)
def test_bad_arguments_are_refused_before_the_server_is_asked(
    verb: str, arguments: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        getattr(AgentClient("127.0.0.1:1"), verb)(*arguments)


def test_a_client_prints_its_address() -> None:
    client = AgentClient("127.0.0.1:1")
    assert repr(client) == "AgentClient('127.0.0.1:1')"
