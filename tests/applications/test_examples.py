"""The examples that a reader copies: each runs by its one command, and does what it says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import fdbqueue
from examples.crawler import AT_ONCE, crawl, two_sites
from examples.demo.java import why_no_spark
from examples.etl import clean, raw, work
from fdbqueue.agents import AgentServer, queue_of_type

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FDBQUEUE_URL", f"file:{tmp_path / 'shop'}")
    return f"file:{tmp_path / 'shop'}"


def test_the_shop_packs_each_customers_orders_in_order_and_sells_nothing_twice(shop: str) -> None:
    from examples import shop as example

    async def visit() -> tuple[list[str], list[int]]:
        async with (
            example.app.router.lifespan_context(example.app),
            httpx.AsyncClient(transport=httpx.ASGITransport(example.app), base_url="http://shop") as client,
        ):
            parcels = []
            for _ in range(3):
                bought = (await client.post("/customers/ann/orders/teapot")).json()
                answer = await client.get(f"/orders/{bought['order']}", params={"wait": 30})
                parcels.append(answer.json()["parcel"])
            example.app.state.db[b"stock/cup"] = (2).to_bytes(8, "little")
            buyers = [client.post(f"/customers/c{n}/orders/cup") for n in range(5)]
            codes = sorted(answer.status_code for answer in await asyncio.gather(*buyers))
            return parcels, codes

    parcels, codes = asyncio.run(visit())
    assert parcels == ["ann-1", "ann-2", "ann-3"]
    assert codes == [202, 202, 409, 409, 409]


def test_the_crawler_visits_each_page_once_with_two_requests_to_a_host() -> None:
    with fdbqueue.open("memory:") as db, two_sites(25) as sites:
        assert crawl(db, [site.address for site in sites]) == 50
        assert crawl(db, [site.address for site in sites]) == 0
        for site in sites:
            assert len(site.visits) == 25
            assert set(site.visits.values()) == {1}
            assert 1 <= site.most <= AT_ONCE


@pytest.mark.slow
def test_the_crawlers_command_serves_sites_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-m", "examples.crawler"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("80 pages fetched\n")


def test_the_etls_workers_clean_each_row_once_and_keep_what_they_refuse(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'queues'}"
    with fdbqueue.open(url) as db:
        readings = ({"id": n, "reading": "?" if n == 7 else f" {n} C", "station": n % 10} for n in range(50))
        raw.enqueue_many(db, readings)
    assert work(url) == 49
    assert work(url) == 0
    with fdbqueue.open(url) as db:
        assert raw.stats(db).dead == 1
        assert sorted(item.value["celsius"] for item in clean.browse(db)) == [n for n in range(50) if n != 7]


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_the_etl_loads_and_writes_by_spark_and_twice_is_once(tmp_path: Path) -> None:
    if missing := why_no_spark():
        pytest.skip(f"Spark can't run here, since {missing}")
    command = [sys.executable, "-m", "examples.etl", "--folder", str(tmp_path / "etl"), "--rows", "200"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    for counts in ("cleaned: 198\nwritten: 198\n", "cleaned: 0\nwritten: 0\n"):
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert ran.stdout == f"{counts}refused: 2\nstations: 10\n", ran.stderr


@pytest.fixture
def items(tmp_path: Path) -> Iterator[Any]:
    with fdbqueue.open(f"file:{tmp_path / 'agents'}") as db:
        queue = queue_of_type(5)
        queue.enqueue_many(db, [b"teapot", b"a line\nand a \x00 byte", b""])
        yield db, queue


def test_the_shell_client_works_on_each_item_and_confirms(items: Any, tmp_path: Path) -> None:
    if not shutil.which("bash"):
        pytest.skip("no bash: sudo apt-get install bash")
    db, queue = items
    (tmp_path / "seen").mkdir()

    async def serve() -> str:
        async with AgentServer(db, listen="127.0.0.1:0", wait=0.1) as server:
            host, port = str(server.address).rsplit(":", 1)
            ran = await asyncio.create_subprocess_exec(
                ROOT / "examples" / "agent.sh",
                re.sub(r".*//", "", host),
                port,
                "5",
                f"cat > {tmp_path}/seen/$(ls {tmp_path}/seen | wc -l)",
                env={**os.environ, "ONCE": "1"},
                stderr=asyncio.subprocess.PIPE,
            )
            _, errors = await asyncio.wait_for(ran.communicate(), 60)
            return errors.decode()

    errors = asyncio.run(serve())
    assert [(tmp_path / "seen" / str(n)).read_bytes() for n in range(3)] == [b"teapot", b"a line\nand a \x00 byte", b""]
    assert queue.stats(db).available == queue.stats(db).leased == 0, errors
