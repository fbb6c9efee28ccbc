"""What Prometheus reads: every series, bounded reads, and the alerts and the dashboard that use them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases, PriorityQueue, Sessions, Subscriptions
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.observe import MetricsServer, reading, serving
from fdbqueue.observe.figures import Wanted, find_wanted, read_these
from fdbqueue.observe.serving import Figures, scraped
from fdbqueue.reads.remembering import Ages
from fdbqueue.stored.items import envelope
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text
from tests.helpers import forked
from tests.helpers.counted import Counted
from tests.helpers.staging import wait_until

MONITORING = Path(__file__).parents[2] / "containers" / "monitoring"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.fixture
def own() -> Iterator[Any]:
    """A database without the queues of other tests."""
    with fdbqueue.open("memory:") as db:
        yield db


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def look(db: Any, *queues: Queue, consumers: tuple[Any, ...] = ()) -> Samples:
    """Scrape some queues."""
    wanted = Wanted([queue_text(queue.layout.prefix) for queue in queues])
    return samples(scraped(Figures(db, wanted, lambda: consumers)))


def value(found: Samples, name: str, queue: Queue, **labels: str) -> float:
    labels["queue"] = queue_text(queue.layout.prefix)
    return found[f"fdbqueue_{name}", tuple(sorted(labels.items()))]


def nothing(lease: Lease) -> None:
    """Do nothing."""


def test_items_by_state_and_totals(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    leases.enqueue_many(db, ["leased", "dead", "acked", "a", "b"])
    leases.enqueue(db, "later", delay=60)
    _, dead, acked = leases.lease_many(db, limit=3)
    leases.nack(db, dead)
    leases.ack(db, acked)

    found = look(db, queue)

    states = {state: value(found, "items", queue, state=state) for state in ("available", "leased", "delayed", "dead")}
    assert states == {"available": 2, "leased": 1, "delayed": 1, "dead": 1}
    assert value(found, "enqueued_total", queue) == 6
    assert value(found, "dequeued_total", queue) == 1
    assert value(found, "expired_total", queue) == 0
    assert 0 <= value(found, "oldest_item_age_seconds", queue) < 60
    assert value(found, "paused", queue) == value(found, "unreadable", queue) == 0
    assert found["fdbqueue_up", ()] == found["fdbqueue_queues", ()] == 1


def test_levels_sessions_subscriptions_and_streams(db: Any, queue: Queue) -> None:
    levels, sessions, subscribed, streamed = (
        Queue(queue.layout.space[name], codec="str") for name in ("levels", "sessions", "subscribed", "streamed")
    )
    for level in (1, 1, 5):
        PriorityQueue(levels).enqueue(db, "a", priority=level)
    of_sessions = Sessions(sessions)
    of_sessions.enqueue_many(db, ["a", "b"], session="Ann")
    of_sessions.enqueue_many(db, ["c"], session="Bob")
    of_sessions.lease(db)
    subscriptions = Subscriptions(subscribed)
    printer = subscriptions.subscribe(db, "printer")
    subscriptions.subscribe(db, "idle")
    subscriptions.enqueue_many(db, map(str, range(10)))
    for _ in range(3):
        printer.lease(db)
    Leases(streamed).enqueue_many(db, ["a", "b", "c"])

    found = look(db, levels, sessions, subscribed, streamed)

    assert [value(found, "level_items", levels, level=str(level)) for level in (1, 5)] == [2, 1]
    states = {state: value(found, "sessions", sessions, state=state) for state in ("ready", "busy", "waiting", "gated")}
    assert states == {"ready": 1, "busy": 1, "waiting": 0, "gated": 0}
    assert value(found, "session_items", sessions, state="available") == 3
    assert value(found, "enqueued_total", sessions) == 3
    assert value(found, "consumers", sessions) == 1
    lags = {name: value(found, "subscription_lag_items", subscribed, subscription=name) for name in ("printer", "idle")}
    assert lags == {"printer": 7, "idle": 7}


def test_dead_letters_count_in_total_and_a_redrive_takes_none_back(db: Any, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    sessions = Sessions(queue, max_attempts=1)
    leases.enqueue_many(db, ["a", "b"])
    for lease in leases.lease_many(db, limit=2):
        leases.nack(db, lease)
    sessions.enqueue(db, "a", session="Ann")
    of_session = sessions.lease(db)
    assert of_session is not None
    sessions.nack(db, of_session)
    leases.dead.redrive(db)
    found = look(db, queue)
    assert value(found, "died_total", queue) == 3
    assert value(found, "items", queue, state="dead") == 0
    assert leases.check(db).ok
    assert sessions.check(db).ok


def test_the_age_of_an_item_that_stores_no_time_is_known_from_earlier_reads(db: Any, queue: Queue) -> None:
    ages, wanted = dict[bytes, Ages](), Wanted([queue_text(queue.layout.prefix)])

    def age(now: float) -> float | None:
        [found] = read_these(db, find_wanted(db, wanted), clock=lambda: now, ages=ages)
        return found.oldest_age_s

    queue.enqueue_many(db, ["a", "b"])
    assert [age(1_000.0), age(1_060.0)] == [0, 60]
    queue.enqueue(db, "c")
    assert age(1_100.0) == 100
    queue.dequeue(db)
    assert age(1_110.0) == 110  # "b" was there too at the first read
    queue.dequeue(db)
    assert age(1_120.0) == 20
    queue.dequeue(db)
    assert age(1_130.0) is None
    queue.clear(db)
    queue.enqueue(db, "d")
    assert age(1_140.0) == 0
    [found] = read_these(db, find_wanted(db, wanted), clock=lambda: 2_000.0)
    assert found.oldest_age_s is None  # without earlier reads


def test_what_is_remembered_for_ages_is_forgotten_with_its_queue(db: Any, queue: Queue) -> None:
    ages, wanted = dict[bytes, Ages](), Wanted([queue_text(queue.layout.prefix)])
    queue.enqueue(db, "a")
    assert len(list(read_these(db, find_wanted(db, wanted), ages=ages))) == 1
    assert ages.keys() == {queue.layout.prefix}
    queue.clear(db)
    assert list(read_these(db, find_wanted(db, wanted), ages=ages)) == []
    assert not ages


def test_the_age_of_the_oldest_first_item_of_sessions(db: Any, queue: Queue) -> None:
    for session, at in (("Ann", 1_000.0), ("Bob", 500.0), ("Cy", 1_500.0)):
        Sessions(queue, clock=partial(float, at)).enqueue(db, "a", session=session)
    [found] = read_these(db, find_wanted(db, Wanted([queue_text(queue.layout.prefix)])), clock=lambda: 2_000.0)
    assert found.oldest_age_s == 1_500
    first = Sessions(queue, clock=lambda: 2_000.0).lease(db)
    assert first is not None
    assert first.session == "Ann"
    [found] = read_these(db, find_wanted(db, Wanted([queue_text(queue.layout.prefix)])), clock=lambda: 2_000.0)
    assert found.oldest_age_s == 1_500


def test_one_read_or_several_find_the_same(db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = PriorityQueue(queue)
    for level in (1, 1, 5):
        levels.enqueue(db, "a", priority=level)
    Subscriptions(queue).subscribe(db, "printer")
    late = Leases(queue, clock=lambda: 1_000.0)
    late.lease_many(db, limit=1, duration=5)
    queue.pause(db, reason="stocktaking")

    def figures() -> Any:
        [found] = read_these(db, find_wanted(db, Wanted([queue_text(queue.layout.prefix)])), clock=lambda: 2_000.0)
        return found

    at_once = figures()
    monkeypatch.setattr(reading, "MOST_TOLD", 1)
    assert figures() == at_once
    assert (at_once.paused, at_once.stuck, at_once.overdue, set(at_once.lags)) == (True, 1, 1, {"printer"})


def test_a_stream_lags_by_what_it_has_not_acked(db: Any, queue: Queue) -> None:
    Leases(queue).enqueue_many(db, ["a", "b", "c"])
    stream: Stream[str] = Stream(queue, "spark")
    stream.claim(db, Terms(epoch="e", batch=1, run="r", items=2, size_bytes=1_000))
    assert value(look(db, queue), "stream_lag_items", queue, stream="spark") == 3


def test_consumers_that_wait_or_work_are_alive(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "a")
    assert value(look(db, queue), "consumers", queue) == 0
    consumer = Consumer(leases, nothing, consumer="printer", signals=False)
    thread = threading.Thread(target=consumer.run, args=(db,))
    thread.start()
    try:
        wait_until(lambda: consumer.report.acked == 1 and value(look(db, queue), "waiting_requests", queue) == 1)
        assert value(look(db, queue), "consumers", queue) == 1
    finally:
        consumer.stop()
        thread.join()


def test_stuck_leases_are_those_that_nobody_ends(db: Any, queue: Queue) -> None:
    leases = Leases(queue, clock=lambda: 1_000.0)  # long ago
    leases.enqueue_many(db, ["a", "b", "c"])
    leases.lease_many(db, limit=2, duration=5)
    leases.enqueue(db, "d", delay=5)
    found = look(db, queue)
    assert value(found, "stuck_leases", queue) == 2
    assert value(found, "overdue_timers", queue) == 3


def test_a_pause_and_an_unreadable_item_are_told_and_hide_no_other(db: Any, queue: Queue) -> None:
    one, other = (Queue(queue.layout.space[name], codec="str") for name in ("one", "other"))
    for each in (one, other):
        each.enqueue(db, "a")
    other.pause(db, reason="stocktaking")
    layout = Layout(one.layout.space)
    db[layout.available.key(b"\x14\x01aaaaaaaa\x00")] = b"\xff of a newer version"
    found = look(db, one, other)
    assert (value(found, "unreadable", one), value(found, "unreadable", other)) == (1, 0)
    assert (value(found, "paused", one), value(found, "paused", other)) == (0, 1)


def test_an_item_that_its_codec_cant_read_is_told(db: Any, queue: Queue) -> None:
    Queue(queue.layout.space, codec="json").register(db, on_codec="replace")
    Queue(queue.layout.space, codec="json").enqueue(db, 1)
    db[queue.layout.available.key(b"\x14\x01aaaaaaaa\x00")] = envelope(b"{oops")
    [found] = read_these(db, find_wanted(db, Wanted([queue_text(queue.layout.prefix)])))
    assert found.problem.startswith("The first item can't be decoded as json: JSON is malformed")


def test_patterns_choose_queues(own: Any) -> None:
    for name in ("shop-orders", "shop-mails", "test", ("a", 1)):
        Queue(name, codec="str").enqueue(own, "a")

    def names(**terms: Any) -> list[str]:
        return [one.queue for one in read_these(own, find_wanted(own, Wanted(**terms)))]

    assert set(names()) == {"shop-mails", "shop-orders", "test", '["a", 1]'}
    assert names(include=["shop-*"], exclude=["*mails"]) == ["shop-orders"]
    assert names(include=['["a", 1]']) == ['["a", 1]']


@pytest.mark.parametrize("terms", [{"include": "shop"}, {"exclude": [7]}, {"include": [""]}])
def test_wrong_patterns_are_refused(terms: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Wanted(**terms)


def test_a_scrape_reads_as_little_of_a_long_queue_as_of_a_short_one(db: Any, queue: Queue) -> None:
    def reads(number: int) -> tuple[int, int]:
        own = Queue(queue.layout.space[str(number)], codec="str")
        leases = Leases(own)
        leases.enqueue_many(db, map(str, range(number)))
        leases.lease_many(db, limit=number // 3)
        leases.enqueue_many(db, map(str, range(number)), delay=60)
        sessions = Sessions(own)
        sessions.enqueue_many(db, map(str, range(number)), session="Ann")
        counted = Counted(db)
        [figures] = read_these(counted, find_wanted(counted, Wanted([queue_text(own.layout.prefix)])))
        assert figures.stats is not None
        assert figures.stats.enqueued == 2 * number
        return counted.did["reads"], counted.did["writes"]

    few, many = reads(9), reads(1_500)
    assert few == many
    assert few[1] == 0


def test_a_scrape_of_plain_queues_makes_seven_reads_of_each_and_few_transactions(own: Any) -> None:
    for number in range(230):
        Leases(Queue(f"q{number:03}", codec="str")).enqueue_many(own, ["a", "b"])
    counted = Counted(own)
    assert len(list(read_these(counted, find_wanted(counted, Wanted())))) == 230
    assert counted.did["reads"] == 1 + 7 * 230
    assert counted.transactions == 4


def test_queues_that_are_left_out_are_not_read(own: Any) -> None:
    for number in range(30):
        Queue(f"q{number}", codec="str").enqueue(own, "a")
    counted = Counted(own)
    assert list(read_these(counted, find_wanted(counted, Wanted(["none"])))) == []
    assert counted.did["reads"] == 1


def test_a_scrape_of_very_many_queues_reads_some_and_tells_how_many_it_left_out(own: Any) -> None:
    for number in range(230):
        Queue(f"q{number:03}", codec="str").enqueue(own, "a")
    counted = Counted(own)
    found = samples(scraped(Figures(counted, Wanted(exclude=["q000"]), limit=20)))
    assert (found["fdbqueue_queues", ()], found["fdbqueue_queues_left_out", ()]) == (20, 209)
    assert counted.did["reads"] == 1 + 7 * 20


def test_a_database_that_can_not_be_read_is_down(own: Any) -> None:
    own.close()
    assert samples(scraped(Figures(own, Wanted())))["fdbqueue_up", ()] == 0


def test_a_scrape_does_not_wait_long_for_another_one(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TIMEOUT_SECONDS", 0.01)
    figures = Figures(own, Wanted())
    with figures.lock:
        assert samples(scraped(figures))["fdbqueue_up", ()] == 0


# --- served


def get(server: MetricsServer) -> Samples:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=600) as answer:
        return samples(answer.read())


def test_consumers_share_a_server_which_ends_with_the_last_one(db: Any, queue: Queue) -> None:
    server = MetricsServer("127.0.0.1:0", include=[queue_text(queue.layout.prefix)])
    leases = Leases(queue)
    leases.enqueue_many(db, ["a", "b"])
    consumers = [Consumer(leases, nothing, consumer=name, metrics=server, signals=False) for name in ("one", "other")]
    threads = [threading.Thread(target=consumer.run, args=(db,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(consumer.report.acked for consumer in consumers) == 2)
        found = get(server)
        acked = [
            value(found, "consumer_items_total", queue, consumer=name, outcome="acked") for name in ("one", "other")
        ]
        assert sum(acked) == 2
    finally:
        for consumer in consumers:
            consumer.stop()
        for thread in threads:
            thread.join()
    assert server.address == "127.0.0.1:0"


def test_a_port_that_is_taken_ends_the_consumer_before_it_takes_an_item(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "a")
    with MetricsServer("127.0.0.1:0").serving(db) as taken, pytest.raises(OSError, match="in use"):
        Consumer(leases, nothing, metrics=MetricsServer(taken.address)).drain(db)
    assert leases.stats(db).available == 1


@pytest.mark.slow
@pytest.mark.engines("file")
def test_the_command_serves_until_it_is_stopped(url: str, db: Any, queue: Queue) -> None:
    queue.enqueue(db, "a")
    command = [sys.executable, "-m", "fdbqueue", "metrics", "--listen", "127.0.0.1:0", "--url", url]
    command += ["--include", "none"]  # the queues of all tests of this process may take longer than a scrape may
    with forked.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            [address] = re.findall(r"http://(\S+)/metrics", told)
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=600) as answer:
                assert samples(answer.read())["fdbqueue_up", ()] == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0
        finally:
            process.kill()


# --- alerts and the dashboard


@pytest.fixture
def all_series(own: Any) -> set[str]:
    """The names of all series that can be."""
    leases = Leases(Queue("all", codec="str"))
    leases.enqueue(own, "a")
    PriorityQueue(Queue("levels", codec="str")).enqueue(own, "a", priority=1)
    Sessions(Queue("sessions", codec="str")).enqueue(own, "a", session="Ann")
    subscriptions = Subscriptions(Queue("subscribed", codec="str"))
    subscriptions.subscribe(own, "one")
    subscriptions.enqueue(own, "a")
    streamed = Queue("streamed", codec="str")
    Leases(streamed).enqueue(own, "a")
    streamed.pause(own)  # a trouble
    text = scraped(Figures(own, Wanted(), lambda: [Consumer(leases, nothing)]))
    return set(re.findall(r"^(fdbqueue_\w+)[{ ]", text.decode(), re.MULTILINE)) | {"fdbqueue_stream_lag_items"}


def test_the_dashboard_and_the_alerts_name_only_series_that_exist(all_series: set[str]) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["definition"] for one in dashboard["templating"]["list"] if "definition" in one]
    alerts = (MONITORING / "alerts.yml").read_text()
    rules = re.sub(r"`[^`]*`|alert: \w+", "", alerts)
    named = {name for text in (*queries, rules) for name in re.findall(r"\bfdbqueue_\w+", text)}
    assert named - all_series == set()
    assert all_series - named == set()  # and leave none out


def promtool(*arguments: str, stdin: bytes = b"") -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: sudo apt-get install prometheus")
    ran = subprocess.run([tool, *arguments], input=stdin, capture_output=True)
    assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()


def test_promtool_accepts_a_scrape(own: Any) -> None:
    leases = Leases(Queue("all", codec="str"))
    leases.enqueue(own, "a")
    promtool("check", "metrics", stdin=scraped(Figures(own, Wanted(), lambda: [Consumer(leases, nothing)])))


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    promtool("check", "rules", str(MONITORING / "alerts.yml"))
    promtool("test", "rules", str(Path(__file__).parent / "alerts_test.yml"))


def test_promtool_accepts_the_configuration() -> None:
    promtool("check", "config", str(MONITORING / "prometheus.yml"))
