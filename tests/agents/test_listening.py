"""Where a server listens, and who may do what there."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import re
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from fdbqueue.agents import Access, AgentClient, AgentError, AgentServer, Limits, Tls, wire
from fdbqueue.agents.access import names_of, types_in
from fdbqueue.agents.words import parse
from fdbqueue.engine import Subspace
from tests.helpers.agents import GREETING, receiving, sending
from tests.helpers.agentservers import PATIENCE_SECONDS, Agent, leases_of, said_by, serving, until

pytestmark = pytest.mark.engines("memory")


@pytest.mark.parametrize(
    "address",
    ["", "4711", ":4711", "localhost", "localhost:", "localhost:x", "localhost:65536", "::1:4711", "unix:", "host:-1"],
)
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        parse(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:4711"])
def test_a_server_does_not_listen_to_other_machines_by_default(db: Any, space: Subspace, address: str) -> None:
    async def body() -> None:
        async with serving(db, space, listen=address):
            pytest.fail("it listens")

    with pytest.raises(ValueError, match="let-everybody-in"):
        asyncio.run(body())


def test_it_does_by_an_option_that_says_so(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, listen="0.0.0.0:0", everybody=True) as server:
            assert server.address.startswith("0.0.0.0:")
            assert not server.address.endswith(":0")

    asyncio.run(body())


def test_a_file_that_does_not_exist_is_named(db: Any, space: Subspace, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError, match=str(missing)):
        Tls(missing, missing, missing).context()

    async def body() -> None:
        async with serving(db, space, listen=f"unix:{missing}/agents"):
            pytest.fail("it listens")

    with pytest.raises(FileNotFoundError, match=str(missing)):
        asyncio.run(body())


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0"])
def test_it_listens_on_the_loopback_interface(db: Any, space: Subspace, listen: str) -> None:
    async def body() -> None:
        async with serving(db, space, listen=listen) as server:
            await AgentClient(server.address).send.aio(5, b"data")
            with pytest.raises(RuntimeError, match="listens already"):
                await server.start()

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


def test_a_unix_socket_is_this_users_own_and_goes_with_the_server(db: Any, space: Subspace, tmp_path: Path) -> None:
    path = tmp_path / "agents"

    async def body() -> None:
        async with serving(db, space, listen=f"unix:{path}") as server:
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            with pytest.raises(OSError, match="another server listens there"):
                await AgentServer(db, listen=f"unix:{path}").start()
            await AgentClient(server.address).send.aio(5, b"data")
        assert not path.exists()

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 1


def test_a_socket_that_a_killed_server_left_is_replaced_and_any_other_file_is_not(
    db: Any, space: Subspace, tmp_path: Path
) -> None:
    left, file = tmp_path / "left", tmp_path / "file"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(left))
    dead.close()
    file.write_text("mine")

    async def body() -> None:
        async with serving(db, space, listen=f"unix:{left}") as server:
            await AgentClient(server.address).send.aio(5, b"data")
        with pytest.raises(OSError, match="in use"):
            await AgentServer(db, listen=f"unix:{file}").start()

    asyncio.run(body())
    assert file.read_text() == "mine"


def test_servers_share_a_port_if_they_all_say_so(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space, reuse_port=True) as first:
            async with serving(db, space, reuse_port=True, listen=first.address) as second:
                assert second.address == first.address
                for _ in range(20):
                    await AgentClient(first.address).send.aio(5, b"data")
            with pytest.raises(OSError, match="in use"):
                await AgentServer(db, listen=first.address).start()

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 20


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


Certified = Callable[..., tuple[ssl.SSLContext, str]]


@pytest.fixture
def certified(authority: trustme.CA) -> Certified:
    """A client's context with a certificate for a common name, and the certificate's fingerprint."""

    def make(name: str, signed_by: trustme.CA = authority) -> tuple[ssl.SSLContext, str]:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        issued = signed_by.issue_cert("client.example", common_name=name)
        issued.configure_cert(context)
        raw = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        return context, f"sha256:{hashlib.sha256(raw).hexdigest()}"

    return make


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> Tls:
    issued = authority.issue_cert("127.0.0.1")
    files = [tmp_path / name for name in ("cert", "key", "ca")]
    issued.cert_chain_pems[0].write_to_path(files[0])
    issued.private_key_pem.write_to_path(files[1])
    authority.cert_pem.write_to_path(files[2])
    return Tls(*files)


def test_with_tls_only_clients_with_a_certificate_get_in(
    db: Any, space: Subspace, tls: Tls, certified: Certified
) -> None:
    async def body() -> None:
        async with serving(db, space, tls=tls) as server:
            good, _ = certified("press")
            await AgentClient(server.address, tls=good).send.aio(5, b"x" * 3_000_000)
            received = await AgentClient(server.address, tls=good).receive.aio(5)
            assert received is not None
            assert received.data == b"x" * 3_000_000
            strange, _ = certified("press", trustme.CA())
            without = ssl.create_default_context(cafile=str(tls.client_ca))
            for context in (strange, without, None):
                with pytest.raises(AgentError):
                    await AgentClient(server.address, tls=context, timeout=60).send.aio(5, b"data")
            blocking = AgentClient(server.address, tls=good)
            await asyncio.to_thread(blocking.confirm, 5, received.id)

    asyncio.run(body())
    stats = leases_of(space).stats(db)
    assert (stats.enqueued, stats.leased) == (1, 0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("kind", "logged", "alert"),
    [
        ("strange", "its certificate is not accepted: ", "unknown ca"),
        (
            "expired",
            "its certificate is not accepted: certificate has expired, and it is that of 'late'",
            "certificate expired",
        ),
        ("none", "peer did not return a certificate", "(certificate required|handshake failure)"),
    ],
)
def test_a_refused_client_hears_why_and_the_server_logs_it(
    db: Any,
    space: Subspace,
    tls: Tls,
    certified: Certified,
    authority: trustme.CA,
    caplog: pytest.LogCaptureFixture,
    version: ssl.TLSVersion,
    kind: str,
    logged: str,
    alert: str,
) -> None:
    context, _ = certified("press", trustme.CA() if kind == "strange" else authority)
    if kind == "expired":
        past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        authority.issue_cert("client.example", common_name="late", not_after=past).configure_cert(context)
    if kind == "none":
        context = ssl.create_default_context(cafile=str(tls.client_ca))
    context.maximum_version = version

    async def body() -> None:
        async with serving(db, space, tls=tls) as server:
            client = AgentClient(server.address, tls=context, timeout=PATIENCE_SECONDS)
            with pytest.raises(AgentError, match=alert):
                await asyncio.to_thread(client.send, 5, b"x" * 1_000_000)
            with pytest.raises(AgentError, match=alert):
                await client.receive.aio(5)
            await until(lambda: not server.handshakes)

    asyncio.run(body())
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2
    for line in lines:
        assert re.match(rf"The client at 127\.0\.0\.1:\d+ was refused: its TLS handshake failed: {logged}", line), line


def test_a_client_without_tls_gets_a_hint_in_the_log(
    db: Any, space: Subspace, tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with serving(db, space, tls=tls) as server:
            with pytest.raises(AgentError):
                await AgentClient(server.address, timeout=PATIENCE_SECONDS).send.aio(5, b"x")
            await until(lambda: not server.handshakes)

    asyncio.run(body())
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith(
        "was refused: it does not speak TLS, and this address wants it. Give the client TLS, such as by --ca."
    )


def test_a_handshake_that_does_not_go_on_is_ended_and_logged(
    db: Any, space: Subspace, tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with serving(db, space, tls=tls, limits=Limits(line_seconds=0.1)) as server:
            async with await Agent.at(server) as agent:
                assert await agent.rest() == b""
            async with await Agent.at(server):
                await until(lambda: server.handshakes)
                await server.stop()
                await until(lambda: not server.handshakes)

    asyncio.run(body())
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith("was refused: its TLS handshake took over 0.1 seconds.")


@pytest.mark.parametrize("half_closes", [False, True])
def test_over_tls_the_server_ends_its_side_after_its_bye(
    db: Any, space: Subspace, tls: Tls, certified: Certified, monkeypatch: pytest.MonkeyPatch, half_closes: bool
) -> None:
    monkeypatch.setattr(wire, "LINGER_SECONDS", 10 * PATIENCE_SECONDS)
    context, _ = certified("press")

    async def body() -> None:
        async with serving(db, space, tls=tls) as server:
            for stream, end in (
                (sending(5, b"data"), b"OK.\nBye.\n"),
                (b"Hello.\n", b"Bye.\n"),
                (GREETING + b"I want to send to any agent of type number 5.\nData size is 99999999.\n", b"Bye.\n"),
            ):
                await asyncio.to_thread(_until_the_end, server, context, stream, end)
            await until(lambda: not server.connections)

    def _until_the_end(server: AgentServer, context: ssl.SSLContext, stream: bytes, end: bytes) -> None:
        host, _, port = server.address.rpartition(":")
        plain = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            secure.sendall(stream)
            said = b""
            while data := secure.recv(4_096):
                said += data
            assert said.endswith(end)
            if half_closes:
                secure.unwrap()

    asyncio.run(body())


def test_a_certificate_may_do_what_the_file_says(
    db: Any, space: Subspace, tls: Tls, certified: Certified, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    press, _ = certified("press")
    shop, fingerprint = certified("shop")
    thief, _ = certified("thief")
    rules = tmp_path / "access.toml"
    rules.write_text(f'[press]\nsend = [5]\n\n["{fingerprint}"]\nreceive = ["5-7"]\n\n["*"]\nsend = [9]\n')

    async def body() -> None:
        async with serving(db, space, tls=tls, access=Access.read(rules)) as server:
            clients = {name: AgentClient(server.address, tls=tls) for name, tls in
                       {"press": press, "shop": shop, "thief": thief}.items()}  # fmt: skip
            await clients["press"].send.aio(5, b"data")
            for client in clients.values():
                await client.send.aio(9, b"data")
            for name, verb, type in (("shop", "send", 5), ("press", "send", 6), ("thief", "send", 5)):
                with pytest.raises(AgentError) as refused:
                    await getattr(clients[name], verb).aio(type, b"data")
                assert (refused.value.step, refused.value.received) == ("type", "Bye.")
            for name in ("press", "thief"):
                with pytest.raises(AgentError):
                    await clients[name].receive.aio(5)
                with pytest.raises(AgentError):
                    await clients[name].confirm.aio(5, 1)
            received = await clients["shop"].receive.aio(5)
            assert received is not None
            await clients["shop"].confirm.aio(5, received.id)

    asyncio.run(body())
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 7
    assert f"'shop' '{fingerprint}' may not send to agent type 5." in lines[0]
    assert lines[0].startswith("The client at 127.0.0.1:")
    assert "may not receive as agent type 5." in lines[-1]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[press", "access.toml: "),
        ("send = [5]", "'send' is no table"),
        ("[press]\nsends = [5]", "has 'sends'"),
        ("[press]\nsend = 5", "no list of agent types"),
        ("[press]\nsend = [-1]", "no agent type"),
        ("[press]\nsend = [true]", "no agent type"),
        ("[press]\nsend = ['9-7']", "no agent type"),
        ("[press]\nsend = [65537]", "no agent type"),
        ("['sha256:12']\nsend = [5]", "no fingerprint"),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "access.toml").write_text(text)
    with pytest.raises(ValueError, match=match):
        Access.read(tmp_path / "access.toml")


def test_a_common_name_can_not_pass_for_a_fingerprint() -> None:
    class Connection:
        def getpeercert(self, binary_form: bool = False) -> Any:
            names = ("sha256:" + "0" * 64, "*", "press")
            return b"raw" if binary_form else {"subject": tuple((("commonName", name),) for name in names)}

    assert names_of(cast(Any, Connection())) == ["press", f"sha256:{hashlib.sha256(b'raw').hexdigest()}"]


def test_types_are_numbers_and_ranges() -> None:
    assert types_in([0, "65536", "7-9"]) == (range(1), range(65_536, 65_537), range(7, 10))


def test_a_path_has_no_tls(db: Any, space: Subspace, tls: Tls, tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(db, space, tls=tls, listen=f"unix:{tmp_path / 'socket'}"):
            pytest.fail("it listens")

    with pytest.raises(ValueError, match="TLS is for HOST:PORT"):
        asyncio.run(body())


def test_a_client_without_tls_at_a_server_with_tls_is_no_trouble(db: Any, space: Subspace, tls: Tls) -> None:
    async def body() -> None:
        async with serving(db, space, tls=tls) as server, await Agent.at(server) as agent:
            await agent.says(sending(5, b"data"))
            assert b"OK." not in await agent.rest()

    asyncio.run(body())
    assert leases_of(space).stats(db).available == 0


def test_the_address_is_the_one_that_was_bound(db: Any, space: Subspace) -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 on this machine")

    async def body() -> None:
        async with serving(db, space, listen="[::1]:0") as server:
            assert parse(server.address)[0] == "::1"
            await AgentClient(server.address).send.aio(5, b"data")

    asyncio.run(body())


def test_each_client_sees_only_its_own_types_data(db: Any, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(6, b"SECRET"))
            assert b"SECRET" not in await said_by(server, receiving(5))

    asyncio.run(body())
