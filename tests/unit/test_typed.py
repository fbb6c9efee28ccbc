"""Threads that meet a type for the first time at once: msgspec ends the process if two of them look at one class."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import layers

ROUNDS = 300
FIRST_USES = {
    "a codec": "JsonCodec(kind).decode(data)",
    "a codec of MessagePack": "MsgpackCodec(kind).decode(packed)",
    "a codec of messages": "Messages(MessageType('one', cls=kind)).decode(tagged)",
    "a type of results": "look_at(kind)",
    "a task": "Arguments('one', task, {}).decode(arguments)",
}
PROGRAM = """
import sys, threading, types
import msgspec
from fdbqueue.base.typed import look_at
from fdbqueue.layers import Messages, MessageType
from fdbqueue.layers.tasks._arguments import Arguments
from fdbqueue.stored.codecs import JsonCodec, MsgpackCodec

sys.setswitchinterval(1e-6)
SOURCE = '''
from __future__ import annotations
import msgspec
class Line(msgspec.Struct):
    sku: str
    number: int
    notes: dict[str, int] | None = None
class Order(msgspec.Struct):
    lines: list[Line]
    first: Line | None = None
'''
for number in range({rounds}):
    module = types.ModuleType(f"orders{{number}}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    kind = module.Order
    order = kind([module.Line("a", 1)] * 2, module.Line("b", 2))
    data, packed = msgspec.json.encode(order), msgspec.msgpack.encode(order)
    tagged = msgspec.json.encode({{"type": "one", **msgspec.to_builtins(order)}})
    arguments = msgspec.json.encode({{"order": order}})
    def task(order): ...
    task.__annotations__["order"] = kind
    together, failed = threading.Barrier(2), []
    def use():
        together.wait()
        try:
            {use}
        except Exception as error:
            failed.append(error)
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_USES)
def test_two_threads_may_use_a_type_first(name: str) -> None:
    program = PROGRAM.format(rounds=ROUNDS, use=FIRST_USES[name])
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_the_librarys_own_classes_have_decoders_from_the_start() -> None:
    roots = Path(fdbqueue.__file__).parent, Path(layers.__file__).parent
    files = sorted({path.resolve() for root in roots for path in root.rglob("*.py")})
    lines = [(path.name, line.strip()) for path in files for line in path.read_text().splitlines()]
    late = re.compile(r"\bdecode\(.*\btype=(?!list\b|dict\b)|^[^_d].*\.Decoder\((?!dict\b|Any\b)")
    found = [f"{name}: {line}" for name, line in lines if late.search(line)]
    assert sorted(found) == [
        "messages.py: self._tag_decoder = module.Decoder(_Tagged)",
        "records.py: return msgspec.msgpack.Decoder(kind)",
        "settings.py: self._decode = msgspec.msgpack.Decoder(kind).decode",
        "typed.py: return module.Decoder(type, **hooks)",
    ]
