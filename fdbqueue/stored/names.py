"""Names as texts, and back. The shell, the page, Spark, logs and metrics print and read names by these functions only.

Each name has one text, and no two names of a kind have the same. A text without control characters is its own text:

| name | its text |
|---|---|
| ``"orders"`` | ``orders`` |
| ``("shop", 7)`` | ``["shop", 7]`` |
| ``b"ann"``, of a session or a gate | ``{"base64": "YW5u"}`` |
| ``"[7]"``, of a session: it would be read as a tuple | ``{"text": "[7]"}`` |
| ``Subspace(rawPrefix=b"\\x02ab")``, which is no tuple, of a queue | ``{"prefix": "026162"}`` |

``"orders"`` and ``("orders",)`` name the same queue, and two sessions. So a queue's name that needs more than its own
text is always an array. Parts of tuples that JSON lacks are objects: ``{"base64": …}``, ``{"uuid": …}``,
``{"versionstamp": …}`` in hex, ``{"single": …}`` for a single float, ``{"double": …}`` in hex for a float that is not
finite. Characters that can't be seen, or that turn the writing around, are escaped, so that a text can be printed,
copied, and sent by a form.
"""

from __future__ import annotations

import binascii
import math
import re
import shlex
import struct
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import UUID

from fdbqueue.engine.keys import NOT_A_TUPLE, Elements, SingleFloat, Subspace, Versionstamp
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.stored.layout import Name, name_of

KeyName: TypeAlias = str | bytes | Elements
"""What names a session, a gate, a group or a subscription."""
UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""The categories of characters that are not shown as they are."""
FORMS = "[{"
"""How a text begins that may not be the name itself."""
OBJECT = re.compile(r'\{\s*"(text|base64|prefix)"\s*:')
"""How a text begins that is an object; any other text that begins with a brace is a name itself."""


def name_text(name: Elements | bytes) -> str:
    """Return the text of a queue's name, from its key tuple or its prefix.

    >>> name_text(("orders",)), name_text(("shop", 7)), name_text((b"raw",)), name_text(b"\\x02abc")
    ('orders', '["shop", 7]', '[{"base64": "cmF3"}]', '{"prefix": "02616263"}')
    """
    if isinstance(name, bytes):
        return _dumped({"prefix": name.hex()})
    return name[0] if len(name) == 1 and _is_plain(name[0]) else _dumped(name_json(name))


@lru_cache(maxsize=1_000)
def queue_text(prefix: bytes) -> str:
    """Return the text of the name of the queue with this prefix."""
    return name_text(name_of(prefix))


def queue_word(name: Elements | bytes) -> str:
    """Return a queue's name as an argument of a command in a shell: quoted, and never taken for an option.

    >>> print(queue_word(("orders",)), queue_word(("shop", 7)), queue_word(("-rf",)))
    orders '["shop", 7]' '["-rf"]'
    """
    text = name_text(name)
    return shlex.quote(_dumped([text]) if text.startswith("-") else text)


def session_word(name: KeyName) -> str:
    """Return the name of a session as an argument of a command, as `queue_word`.

    >>> print(session_word("ann"), session_word("-rf"))
    ann '{"text": "-rf"}'
    """
    text = session_text(name)
    return shlex.quote(_dumped({"text": text}) if text.startswith("-") else text)


def value_word(text: str) -> str:
    """Return an option's value as an argument of a command, quoted."""
    return shlex.quote(text)


def queue_named(text: str) -> Name:
    """Return the queue's name that has this text.

    Raises:
        ValueError: it is no queue's name.

    >>> queue_named("orders"), queue_named('["shop", 7]'), queue_named('[{"base64": "cmF3"}]')
    ('orders', ('shop', 7), (b'raw',))
    """
    name: Name = _read(text, "queue")
    return name


def session_text(name: KeyName) -> str:
    """Return the text of the name of a session or a gate; or of a group or a subscription, which is a text itself.

    >>> session_text("ann"), session_text(("vip", 7)), session_text('["vip", 7]'), session_text(b"ann")
    ('ann', '["vip", 7]', '{"text": "[\\\\"vip\\\\", 7]"}', '{"base64": "YW5u"}')
    """
    shown = session_json(name)
    return shown if isinstance(shown, str) else _dumped(shown)


def session_json(name: KeyName) -> Any:
    """Return the name of a session or a gate for a record in JSON: as its text has it, so that it can be given back.

    >>> session_json("ann"), session_json(("vip", 7)), session_json('["vip", 7]')
    ('ann', ['vip', 7], {'text': '["vip", 7]'})
    """
    return {"text": name} if isinstance(name, str) and not _is_plain(name) else name_json(name)


def session_told(name: KeyName) -> str:
    """Return the name of a session, a gate, a schedule or a subscription for a sentence: its text, in quotes.

    >>> print(session_told(("vip", 7)))
    '["vip", 7]'
    """
    return f"'{session_text(name)}'"


def session_named(text: str, what: str = "session") -> KeyName:
    """Return the name of a session, or of a gate, that has this text.

    Raises:
        ValueError: it is no name.

    >>> session_named("ann"), session_named('["vip", 7]'), session_named('{"text": "[7]"}')
    ('ann', ('vip', 7), '[7]')
    """
    name: KeyName = _read(text, what)
    if isinstance(name, Subspace):
        raise ValueError(f"{_short(text)} names no {what}: only a queue has a prefix.")
    return name


def text_named(text: str, what: str) -> str:
    """Return the name that has this text, of something that is named by a text only: a group, a subscription.

    Raises:
        ValueError: it is no name.

    >>> text_named("[7]", "group"), text_named('{"text": "a\\\\nb"}', "group")
    ('[7]', 'a\\nb')
    """
    name = _read(text, what) if text[:1] == "{" else text
    if not isinstance(name, str):
        raise ValueError(f"{_short(text)} names no {what}: a {what} is named by a text.")
    return name


def name_json(name: object) -> Any:
    """Return a name as JSON has it: a text as a string, a tuple as an array.

    Raises:
        TypeError: a part of it can't be in a key.

    >>> name_json(("shop", None, 1.5, (b"x",)))
    ['shop', None, 1.5, [{'base64': 'eA=='}]]
    """
    if name is None or isinstance(name, str | bool | int):
        return name
    if isinstance(name, tuple | list):
        return [name_json(part) for part in name]
    if isinstance(name, bytes):
        return {"base64": binascii.b2a_base64(name, newline=False).decode()}
    if isinstance(name, float):
        return name if math.isfinite(name) else {"double": struct.pack(">d", name).hex()}
    if isinstance(name, SingleFloat):
        value = name.value
        return {"single": value if math.isfinite(value) else struct.pack(">f", value).hex()}
    if isinstance(name, UUID):
        return {"uuid": str(name)}
    if isinstance(name, Versionstamp):
        return {"versionstamp": name.to_bytes().hex()}
    raise TypeError(f"{name!r} can't be a part of a name.")


def escaped(text: str, but: str = "") -> str:
    """Return a text with the code of each character that is not shown as it is, except those in `but`.

    >>> escaped("a\\x07b\\u202ec"), escaped("a\\nb", but="\\n")
    ('a\\\\u0007b\\\\u202ec', 'a\\nb')
    """
    if text.isprintable():
        return text
    return "".join(char if char in but or unicodedata.category(char) not in UNSEEN else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _is_plain(name: object) -> bool:
    """Return whether a name is its own text."""
    return (
        isinstance(name, str)
        and bool(name)
        and name[0] != "["
        and OBJECT.match(name) is None
        and (name.isprintable() or not any(unicodedata.category(char) in UNSEEN for char in name))
    )


def _dumped(value: object) -> str:
    import json  # most names are their own texts

    # What json leaves as it is and is not shown is inside of strings, where its code means the same.
    return escaped(json.dumps(value, ensure_ascii=False))


def _read(text: str, what: str) -> Any:
    """Return what a text names: a str, bytes, a tuple, or the subspace of a prefix. It may be too long, or empty."""
    if not text:
        raise ValueError(f"The {what}'s name is empty.")
    try:
        name = _value(_loaded(text)) if text[0] == "[" or OBJECT.match(text) else text
        if not isinstance(name, Subspace):
            fdb_tuple.pack((name,))
    except (UnicodeEncodeError, *NOT_A_TUPLE) as error:
        raise ValueError(f"{_short(text)} names no {what}: {error}") from error
    return name


def _loaded(text: str) -> Any:
    import json

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is written as {{'double': …}}, in hex")

    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _value(found: object) -> Any:
    if isinstance(found, list):
        return tuple(_value(part) for part in found)
    if not isinstance(found, dict):
        return found
    [(kind, given)] = found.items() if len(found) == 1 else [("", None)]
    if kind not in _KINDS:
        raise ValueError(f"an object has one of the fields {', '.join(_KINDS)}, not {_short(repr(found))}")
    return _KINDS[kind](given)


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{_short(repr(given))} is no text")
    return given


def _bytes(given: object) -> bytes:
    return binascii.a2b_base64(_text(given), strict_mode=True)


def _float(letter: str) -> Callable[[Any], Any]:
    def read(given: object) -> Any:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        return struct.unpack(f">{letter}", bytes.fromhex(_text(given)))[0]

    return read


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "text": _text,
    "base64": _bytes,
    "prefix": lambda given: Subspace(rawPrefix=bytes.fromhex(_text(given))),
    "uuid": lambda given: UUID(_text(given)),
    "versionstamp": lambda given: Versionstamp(*struct.unpack(">10sH", bytes.fromhex(_text(given)))),
    "single": lambda given: SingleFloat(_float("f")(given)),
    "double": _float("d"),
}
"""The objects of a text, by their only field."""


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
