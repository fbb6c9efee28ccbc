"""The server's side of the dialogs, without a network and without a database."""

from __future__ import annotations

import pytest

from fdbqueue.agents import dialog as said
from fdbqueue.agents.dialog import Dialog, End, Ended
from tests.helpers.agents import GREETING, World, confirming, played, receiving, sending


def test_the_sending_dialog_is_that_of_the_document() -> None:
    host = played(World(), sending(5, b"HERE IS DATA").splitlines(keepends=True))

    assert host.said == b"Hi.\nOK.\nOK.\nOK.\nOK.\nBye.\n"
    assert host.world.stored == [b"HERE IS DATA"]
    assert host.end is End.done


def test_the_receiving_dialog_is_that_of_the_document() -> None:
    host = played(World(has=(456, b"HERE IS DATA")), receiving(5).splitlines(keepends=True))

    assert host.said == (
        b"Hi.\nOK.\nOK.\nOK.\nData size is 12. Data ID is 456.\nData:\nHERE IS DATA.\nData is locked.\nBye.\n"
    )
    assert host.world.locked == [456]
    assert host.end is End.done


def test_the_confirming_dialog_is_that_of_the_document() -> None:
    host = played(World(), confirming(5, 456).splitlines(keepends=True))

    assert host.said == b"Hi.\nOK.\nOK.\nOK.\nBye.\n"
    assert host.world.confirmed == [456]
    assert host.end is End.done


@pytest.mark.parametrize("stream", [sending(5, b"data"), receiving(5), confirming(5, 456)])
def test_a_dialog_may_come_in_one_packet_or_byte_by_byte_with_any_case_and_line_ends(stream: bytes) -> None:
    expected = played(World(), [stream])
    assert expected.end is End.done

    for told in (stream.upper(), stream.replace(b"\n", b"\r\n"), stream.replace(b".\n", b".\r\n")):
        told = told.replace(b"DATA.", b"data.")
        for packets in ([told], [told[at : at + 1] for at in range(len(told))]):
            host = played(World(), packets)
            assert (host.said, host.world, host.end) == (expected.said, expected.world, End.done)


@pytest.mark.parametrize("data", [b"", b"\n.\n", b".\n", b"Bye.\n", b"\r\n", b"\0" * 1_000, bytes(range(256))])
def test_data_of_the_announced_size_may_hold_anything(data: bytes) -> None:
    sent = played(World(), [sending(5, data)])
    assert (sent.world.stored, sent.end) == ([data], End.done)

    received = played(World(has=(1, data)), [receiving(5)])
    assert b"Data:\n" + data + b".\nData is locked.\n" in received.said
    assert received.world.locked == [1]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"x.\n", b"\n.\n", b". \n", b"..\n", b".\r\r\n"])
def test_data_without_its_terminator_fails_and_is_not_stored(end: bytes) -> None:
    stream = sending(5, b"data").replace(b"data.\nBye.\n", b"data" + end + b"\nBye.\n")
    host = played(World(), [stream])

    assert host.world.stored == []
    assert host.said == b"Hi.\nOK.\nOK.\nOK.\nFail!\nBye.\n"


def test_data_that_can_not_be_stored_fails_and_the_client_says_bye() -> None:
    host = played(World(stores=False), [sending(5, b"data")])

    assert host.said.endswith(b"OK.\nFail!\nBye.\n")
    assert host.end is End.left


@pytest.mark.parametrize("size", [3, 5])
def test_a_wrong_size_fails_or_waits_for_more(size: int) -> None:
    host = played(World(), [sending(5, b"data", size)])
    assert host.world.stored == []

    waiting = played(World(), [sending(5, b"data", 100)])
    assert waiting.end is End.lost
    assert waiting.said == b"Hi.\nOK.\nOK.\nOK.\n"


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        (b"Hello.", b""),
        (b"GET / HTTP/1.1", b""),
        (b"Hi.\nI speak SCS Queue protocol version 0.02.", b"Hi.\n"),
        (b"Hi.\nI want to receive.", b"Hi.\n"),
        (GREETING + b"I want to send to any agent of type number 7.", b"Hi.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number 65537.", b"Hi.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number -5.", b"Hi.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number .", b"Hi.\nOK.\n"),
        (GREETING + "I'm agent of type number ٥.".encode(), b"Hi.\nOK.\n"),
        (GREETING + b"I'm agent of type number 5", b"Hi.\nOK.\n"),
        (GREETING + b"I'm agent of type number 5.\nI want to send.", b"Hi.\nOK.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number 5.\nData size is 1001.", b"Hi.\nOK.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number 5.\nData size is 2147483649.", b"Hi.\nOK.\nOK.\n"),
        (GREETING + b"I want to send to any agent of type number 5.\nData size is 1e3.", b"Hi.\nOK.\nOK.\n"),
        (confirming(5, 457).removesuffix(b"\nBye.\n"), b"Hi.\nOK.\nOK.\n"),
        (confirming(5, 2**31 + 1).removesuffix(b"\nBye.\n"), b"Hi.\nOK.\nOK.\n"),
    ],
)
def test_an_unexpected_line_gets_bye(line: bytes, answers: bytes) -> None:
    host = played(World(), [line + b"\n"])

    assert host.said == answers + b"Bye.\n"
    assert host.end in (End.wrong, End.refused)


def test_the_largest_numbers_of_the_document_are_taken() -> None:
    world = World(types=frozenset({65_536}), max_size=2**31, ids=frozenset({2**31}))

    host = played(world, [GREETING + b"I want to send to any agent of type number 65536.\nData size is 2147483648.\n"])
    assert host.said == b"Hi.\nOK.\nOK.\nOK.\n"
    assert played(world, [confirming(65_536, 2**31)]).world.confirmed == [2**31]


@pytest.mark.parametrize("stream", [sending(5, b"x" * 10), receiving(5), confirming(5, 456)])
def test_bye_is_answered_at_every_line_and_leaves_nothing_behind(stream: bytes) -> None:
    lines = stream.splitlines(keepends=True)[:-1]
    for said_before in range(len(lines)):
        if lines[said_before - 1] == b"Data:\n":
            continue  # here it is data
        world = World()
        host = played(world, [*lines[:said_before], b"bYE.\r\n"])
        assert host.said.endswith(b"Bye.\n")
        assert host.end is End.left
        assert [world.stored, world.locked, world.confirmed] == [[], [], []]


def test_a_second_dialog_gets_bye() -> None:
    twice = sending(5, b"data").removesuffix(b"Bye.\n") + b"I want to send to any agent of type number 5.\n"
    host = played(World(), [twice])

    assert host.said == b"Hi.\nOK.\nOK.\nOK.\nOK.\nBye.\n"
    assert host.world.stored == [b"data"]


def test_a_line_without_an_end_is_cut_off() -> None:
    assert played(World(), [b"x" * 255]).said == b""
    host = played(World(), [b"x" * 256])

    assert (bytes(host.said), host.end) == (b"Bye.\n", End.line)


def waiting_to_receive(ahead: bytes = b"") -> Dialog:
    dialog = Dialog()
    dialog.feed(GREETING + b"I'm agent of type number 5.\nI want to receive.\n" + ahead)
    assert isinstance(dialog.next(), said.TypeNamed)
    dialog.accept()
    assert isinstance(dialog.next(), said.ReceiveWanted)
    dialog.output()
    return dialog


def test_a_client_may_leave_while_the_server_looks_for_data() -> None:
    dialog = waiting_to_receive()
    assert dialog.next() is None

    dialog.feed(b"Bye.\n")

    assert dialog.next() == Ended(End.left)
    assert dialog.output() == b"Bye.\n"
    dialog.offer(12, 456)  # too late
    assert dialog.output() == b""


def test_a_client_that_hangs_up_while_the_server_looks_for_data_is_lost() -> None:
    dialog = waiting_to_receive()
    dialog.end_of_input()

    assert dialog.next() == Ended(End.lost)


def test_a_client_that_sent_everything_ahead_and_closed_its_side_is_served() -> None:
    dialog = waiting_to_receive(b"OK.\nOK.\nBye.\n")
    dialog.end_of_input()
    assert dialog.next() is None

    dialog.offer(0, 456)

    assert isinstance(dialog.next(), said.DataReceived)
    dialog.accept()
    assert dialog.next() == Ended(End.done)
    assert dialog.output().endswith(b"Data:\n.\nData is locked.\nBye.\n")


def test_nothing_is_said_in_the_middle_of_data_when_the_server_leaves() -> None:
    dialog = waiting_to_receive(b"OK.\n")
    dialog.offer(4, 456)
    assert isinstance(dialog.next(), said.OfferTaken)
    dialog.send_data(b"da")
    dialog.output()

    dialog.leave()

    assert dialog.output() == b""
    assert dialog.next() == Ended(End.refused)


def test_an_unknown_outcome_gets_no_answer() -> None:
    dialog = Dialog()
    dialog.feed(sending(5, b"data"))
    while not isinstance(event := dialog.next(), said.DataComplete):
        if not isinstance(event, said.MessagePart):
            dialog.accept()
    dialog.output()

    dialog.leave()

    assert dialog.output() == b""


def test_more_data_than_was_offered_is_a_fault_of_the_host() -> None:
    dialog = waiting_to_receive(b"OK.\n")
    dialog.offer(4, 456)
    assert isinstance(dialog.next(), said.OfferTaken)

    with pytest.raises(ValueError, match="1 bytes more"):
        dialog.send_data(b"datas")


def test_an_answer_without_a_question_is_a_fault_of_the_host() -> None:
    with pytest.raises(RuntimeError, match="no question"):
        Dialog().accept()
