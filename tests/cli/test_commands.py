"""Commands of the command line: JSON lines in and out, exit codes, nothing removed unasked."""

from __future__ import annotations

import json
import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.cli.errors import StopSignals
from fdbqueue.cli.opening import CodecName
from fdbqueue.cli.output import line
from fdbqueue.cli.taking import Drain
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import MessageType
from fdbqueue.reads.browse import BrowsePace
from fdbqueue.stored.codecs import JsonCodec
from tests.cli.conftest import Run, beside, deep
from tests.helpers.days import Days
from tests.helpers.faults import Fault, FaultyDatabase
from tests.helpers.raw import raw
from tests.helpers.smart import smart_queue

pytestmark = pytest.mark.engines("file", "cluster")


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_arguments_are_enqueued_and_dequeued_as_json_lines_in_order(run: Run, name: str) -> None:
    assert run("enqueue", name, '{"sku": 7}', "[1, null]", '"text"').exit_code == 0

    taken = run("dequeue", name, "--limit", "2")

    assert (taken.exit_code, lines(taken.stdout)) == (0, [{"sku": 7}, [1, None]])
    assert lines(run("dequeue", name, "--all").stdout) == ["text"]


def test_lines_of_standard_input_are_enqueued_and_empty_ones_skipped(run: Run, name: str) -> None:
    assert run("enqueue", name, stdin="1\n\n2\n").exit_code == 0

    assert lines(run("browse", name).stdout) == [1, 2]


def test_enqueue_reads_the_output_of_dequeue(run: Run, name: str, space: Subspace) -> None:
    other = beside(name)
    run("enqueue", name, stdin="".join(f'{{"n": {n}}}\n' for n in range(250)))

    moved = run("dequeue", name, "--all").stdout
    run("enqueue", other, stdin=moved)

    assert lines(run("browse", other).stdout) == [{"n": n} for n in range(250)]


@pytest.mark.parametrize("command", ["dequeue", "peek", "browse"])
def test_an_empty_queue_gives_nothing_and_exit_code_1(run: Run, name: str, command: str) -> None:
    answered = run(command, name)

    assert (answered.exit_code, answered.stdout) == (errors.EMPTY, "")


def test_peek_and_browse_leave_everything_in_place(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2", "3")

    assert lines(run("peek", name).stdout) == [1]
    assert lines(run("browse", name, "--reverse", "--limit", "2").stdout) == [3, 2]
    assert lines(run("stats", name).stdout)[0]["available"] == 3


def test_records_carry_positions_that_browse_goes_on_from(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2", "3")

    first = lines(run("peek", name, "--records").stdout)[0]

    assert first["value"] == 1
    assert lines(run("browse", name, "--after", f"{first['index']}:{first['random']}").stdout) == [2, 3]


def test_browse_rests_so_that_it_reads_in_its_share_of_the_time(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("enqueue", name, stdin="1\n" * 1_200)
    days = Days()
    monkeypatch.setattr("fdbqueue.verbs.queue.BrowsePace", partial(BrowsePace, clock=days, rest=days.rest))

    assert lines(run("browse", name, "--duty-cycle", "0.1").stdout) == [1] * 1_200

    assert days.rests
    assert min(days.rests) == pytest.approx(8.0), "a page and looking at the clock took a second each"
    assert run("browse", name, "--duty-cycle", "0").exit_code == errors.USAGE


def test_all_items_are_dequeued_though_one_transaction_is_too_short_for_them(
    db: Any, space: Subspace, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    class Counting(JsonCodec):
        """Counts what is read."""

        read = 0

        def decode(self, data: bytes) -> Any:
            self.read += 1
            return super().decode(data)

    codec = Counting()
    queue = fdbqueue.Queue(space, codec=codec)
    queue.enqueue_many(db, range(250))

    def plan() -> Fault | None:
        too_many, codec.read = codec.read > 50, 0
        assert slow.faults < 10, "it asks for as many again and again"
        return ("before", 1007) if too_many else None

    slow = FaultyDatabase(db, plan)
    for limit, out in (248, 248), (None, 2):
        drain = Drain(slow, Leases(queue), StopSignals(), partial(line, codec=CodecName.json))
        drain.run(limit)
        assert drain.out == out
    assert lines(capfdbinary.readouterr().out.decode()) == list(range(250))


def test_headers_are_part_of_a_record(run: Run, name: str, db: Any, space: Subspace) -> None:
    fdbqueue.Queue(space, codec="json").enqueue(db, 1, headers={"colour": "red"})

    assert lines(run("peek", name, "--records").stdout)[0]["headers"] == {"colour": "red"}


@pytest.mark.parametrize(
    ("codec", "line"),
    [
        ("json", '{"a":[1,2.5,"x",null,true]}'),
        ("msgpack", '{"a":[1,2.5,"x",null,true]}'),
        ("str", '"café"'),
        ("bytes", '"café"'),
        ("bytes", '{"base64":"/wAB"}'),
        ("tuple", '[1,"a",{"base64":"/w=="},[2,null]]'),
    ],
)
def test_every_codec_returns_the_line_that_was_enqueued(run: Run, name: str, codec: str, line: str) -> None:
    assert run("enqueue", name, "--codec", codec, stdin=line + "\n").exit_code == 0

    assert run("dequeue", name, "--codec", codec).stdout == line + "\n"


def test_arguments_to_a_queue_of_text_are_the_text_itself(run: Run, name: str) -> None:
    run("enqueue", name, "plain words", "--codec", "str")

    assert run("dequeue", name, "--codec", "str").stdout == '"plain words"\n'


def test_raw_lines_are_the_values_whatever_bytes_they_hold(run: Run, name: str, db: Any, space: Subspace) -> None:
    assert run("enqueue", name, "--codec", "bytes", "--raw", stdin=b"not {json}\n\xff\xfe\n").exit_code == 0

    assert [item.value for item in fdbqueue.Queue(space).browse(db)] == [b"not {json}", b"\xff\xfe"]


@pytest.mark.parametrize("command", ["dequeue", "peek", "browse", "enqueue"])
def test_a_queue_of_json_has_no_raw_values(run: Run, name: str, command: str) -> None:
    run("enqueue", name, "1")

    refused = run(command, name, "--raw", stdin="2\n")

    assert refused.exit_code == errors.USAGE
    assert "use --raw with the codec str or bytes" in refused.stderr
    assert lines(run("browse", name).stdout) == [1]


@pytest.mark.parametrize(("command", "arguments"), [("dequeue", ["--all"]), ("lease", ["-n", "2"])])
def test_an_item_that_json_can_not_hold_stays_and_earlier_ones_are_printed(
    run: Run, name: str, db: Any, space: Subspace, command: str, arguments: list[str]
) -> None:
    nested = deep()
    queue = fdbqueue.Queue(space, codec="msgpack")
    queue.enqueue_many(db, [1, nested])

    refused = run(command, name, *arguments, "--codec", "msgpack")

    assert refused.exit_code == errors.VALUE
    assert "can't be written as JSON" in refused.stderr
    assert "1 more item went back" in refused.stderr or "1 went back to it" in refused.stderr
    [printed] = lines(refused.stdout)
    assert (printed if command == "dequeue" else printed["value"]) == 1
    stats = Leases(queue).stats(db)
    assert (stats.available, stats.leased) == (1, int(command == "lease"))


@pytest.mark.parametrize(
    ("codec", "line", "reason"),
    [
        ("json", "not json", "is not JSON"),
        ("str", "7", "must be str"),
        ("bytes", "7", "neither a string nor"),
        ("bytes", '{"base64": "?"}', "not base64"),
        ("tuple", '{"a": 1}', "not a JSON array"),
    ],
)
def test_a_line_that_the_codec_refuses_is_named_and_no_item_is_enqueued(
    run: Run, name: str, codec: str, line: str, reason: str
) -> None:
    refused = run("enqueue", name, "--codec", codec, stdin=line + "\n")

    assert refused.exit_code == errors.VALUE
    assert reason in refused.stderr
    assert run("browse", name, "--codec", codec).exit_code == errors.EMPTY


def test_a_bad_line_far_down_tells_how_many_items_are_in(run: Run, name: str) -> None:
    refused = run("enqueue", name, stdin="1\n" * 2_500 + "oops\n")

    enqueued = lines(run("stats", name).stdout)[0]["enqueued"]
    assert refused.exit_code == errors.VALUE
    assert "Line 2501" in refused.stderr
    assert f"after {enqueued:,} values were in" in refused.stderr


def test_an_item_that_does_not_decode_is_named_and_stays(run: Run, name: str) -> None:
    run("enqueue", name, "--codec", "bytes", "no json")
    other = run("dequeue", name, "--codec", "json")
    assert (other.exit_code, "is registered with the codec 'bytes'" in other.stderr) == (errors.VALUE, True)
    kept = run("register", name, "--codec", "json")
    assert (kept.exit_code, "--on-codec replace" in kept.stderr) == (errors.VALUE, True)
    assert run("register", name, "--codec", "json", "--on-codec", "replace").exit_code == 0

    refused = run("dequeue", name, "--codec", "json")

    assert refused.exit_code == errors.VALUE
    assert "does not decode" in refused.stderr
    assert lines(run("dequeue", name, "--codec", "bytes").stdout) == ["no json"]


def test_stats_count_enqueued_and_dequeued_items(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2", "3")
    run("dequeue", name)

    told = lines(run("stats", name).stdout)[0]

    assert (told["queue"], told["available"], told["enqueued"], told["dequeued"]) == (name, 2, 3, 1)


def test_check_accepts_a_consistent_queue(run: Run, name: str) -> None:
    run("enqueue", name, "1")

    found = run("check", name)

    assert (found.exit_code, lines(found.stdout)[0]["ok"]) == (0, True)


def test_check_exits_with_1_and_names_the_problem(run: Run, name: str, db: Any, space: Subspace) -> None:
    run("enqueue", name, "1")
    db[space.pack((99, b"stray"))] = b"no envelope"

    found = run("check", name)

    assert found.exit_code == errors.EMPTY
    assert len(lines(found.stdout)[0]["problems"]) == 2, "the stray key, and the counters that don't know it"


def test_clear_refuses_without_a_terminal_to_ask(run: Run, name: str) -> None:
    run("enqueue", name, "1")

    assert run("clear", name).exit_code == errors.USAGE
    assert lines(run("browse", name).stdout) == [1]


def test_clear_with_yes_removes_everything_without_asking(run: Run, name: str, db: Any, space: Subspace) -> None:
    run("enqueue", name, "1")

    assert run("clear", name, "--yes").exit_code == 0

    assert list(db.get_range_startswith(space.key())) == []


def test_clear_counts_the_items_of_every_state(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    run("lease", name)

    assert "the 2 items" in run("clear", name).stderr


@pytest.mark.engines("file")
def test_a_url_that_names_no_engine_is_a_usage_error(run: Run) -> None:
    refused = run("stats", "q", "--url", "redis:")

    assert refused.exit_code == errors.USAGE
    assert "is not a database URL" in refused.stderr


@pytest.mark.engines("file")
def test_a_database_that_ends_with_the_command_is_a_usage_error(run: Run) -> None:
    refused = run("enqueue", "q", "1", "--url", "memory:")

    assert refused.exit_code == errors.USAGE
    assert "memory: database ends" in refused.stderr


@pytest.mark.engines("file")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["enqueue", "[]", "1"], "needs a subspace of its own"),
        (["stats", "q", "--url", "file:.?durability"], "'durability'"),
        (["lease", "q", "--duration", "0"], "duration is a number of seconds"),
        (["nack", "q", "--delay", "inf", "1:00:00"], "delay is a number of seconds"),
        (["subscribe", "q", ""], "1 to 200 bytes"),
        (["watchdog", "q", "--exec", "restart 'it"], "No closing quotation"),
    ],
)
def test_an_argument_that_the_library_does_not_take_is_a_usage_error(
    run: Run, name: str, arguments: list[str], reason: str
) -> None:
    refused = run(*(name if argument == "q" else argument for argument in arguments))

    assert refused.exit_code == errors.USAGE
    assert reason in refused.stderr


@pytest.mark.engines("file")
def test_a_folder_that_cannot_be_used_is_an_error_of_the_database(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    refused = run("stats", "q", "--url", f"file:{tmp_path / 'file'}")

    assert refused.exit_code == errors.ENGINE
    assert refused.stderr.startswith("Error: ")


@pytest.mark.engines("file")
def test_a_cluster_file_that_is_not_there_is_an_error_of_the_database(run: Run, tmp_path: Path) -> None:
    refused = run("stats", "q", "--url", f"fdb:{tmp_path / 'fdb.cluster'}")

    assert refused.exit_code == errors.ENGINE
    assert "no cluster file" in refused.stderr


def test_an_item_that_cannot_be_read_is_named_as_after_takes_it(run: Run, name: str, db: Any) -> None:
    key = tuple(json.loads(name))
    for value in b"1", b"\xff", b"3":
        raw(key).enqueue(db, value)

    browsed = run("browse", name, "--codec", "json")
    [unreadable] = re.findall(r"The item (\S+) of", browsed.stderr)

    assert (browsed.exit_code, browsed.stdout) == (errors.VALUE, "1\n")
    assert run("browse", name, "--codec", "json", "--after", unreadable).stdout == "3\n"


@pytest.mark.parametrize("terms", [(), ("--delay", "9"), ("--records",)])
def test_a_smart_queue_takes_nothing_from_the_command_line(
    run: Run, name: str, db: Any, space: Subspace, terms: tuple[str, ...]
) -> None:
    smart = smart_queue(space, MessageType("x"))
    smart.enqueue(db, {"type": "x"})
    result = run("enqueue", name, *terms, '{"value": {"type": "x"}}' if "--records" in terms else '{"type": "x"}')
    assert result.exit_code == 2
    assert "is smart" in result.stderr
    assert "SmartQueue(...).enqueue" in result.stderr
    assert run("dequeue", name).stdout == '{"type":"x"}\n'
    assert run("dequeue", name).exit_code == 1


def test_an_address_that_is_taken_is_told_with_its_option(run: Run, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for what, command in (
            ("metrics can't be served", ["metrics", "--listen"]),
            ("the page can't be served", ["web", "--listen"]),
            ("metrics can't be served", ["web", "--listen", "127.0.0.1:0", "--metrics"]),
            ("agents can't be served", ["agents", "serve", "--listen"]),
            ("metrics can't be served", ["agents", "serve", "--listen", "127.0.0.1:0", "--metrics"]),
        ):
            told = run(*command, address)
            assert told.exit_code == errors.ENGINE
            assert told.stderr == f"Error: {what} at {address}: Address already in use. Give another {command[-1]}.\n"


def test_words_of_errors_and_help(run: Run, name: str, tmp_path: Path) -> None:
    refused = " ".join(run("browse", name, "--state", "foo").stderr.split())
    assert "Invalid value for '--state': 'foo' is not one of" in refused
    assert "It needs the extra `web`." in " ".join(run("web", "--help").stdout.split())
    missing = f"file:{tmp_path / 'none'}"
    for command in ("health", "queues", "web"):
        told = run(command, "--url", missing)
        assert told.exit_code == errors.ENGINE
        assert "enqueue" not in told.stderr
    assert "`fdbqueue enqueue` creates one." in run("peek", name, "--url", missing).stderr
