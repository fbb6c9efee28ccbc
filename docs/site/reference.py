"""Pages of reference: every public class with its verbs, the command line, and the keys, from their own texts."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import fdbqueue
from docs.site import kernel
from fdbqueue.cli.app import app
from fdbqueue.engine.verb import BoundVerb, Verb
from fdbqueue.stored import key_table

WIDTH = 88
OWN_PAGE = 3
"""A class with so many documented methods has a page of its own."""
PLACES = {
    "fdbqueue": "Functions and records of fdbqueue",
    "fdbqueue.layers": "Functions and records of the layers",
    "fdbqueue.spark": "Spark",
    "fdbqueue.transfer": "Export, import, copy, backup",
    "fdbqueue.agents": "Agents",
    "fdbqueue.observe": "Telemetry",
    "fdbqueue.web": "The web page",
}
"""Where public names are, and the titles of their pages of small things."""


def public() -> dict[str, list[tuple[str, Any]]]:
    """Return the public names of each place, with what they name; a name that two places have is the first one's.

    >>> [name for name, _ in public()["fdbqueue.transfer"]][:2]
    ['backup', 'BackupReport']
    """
    found: dict[str, list[tuple[str, Any]]] = {}
    seen: set[int] = set()
    for place in PLACES:
        module = importlib.import_module(place)
        names = [*module.__all__, *(["open"] if place == "fdbqueue" else [])]
        found[place] = []
        for name in sorted(names, key=str.lower):
            one = getattr(module, name)
            if name.startswith("_") or id(one) in seen:
                continue
            seen.add(id(one))
            found[place].append((name, one))
    return found


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods, verbs and properties of a class, its bases' of this library too."""
    for name in sorted(dir(kind)):
        if name.startswith("_"):
            continue
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith("fdbqueue"):
            continue
        member = vars(owner)[name]
        callable_ = isinstance(member, Verb | staticmethod | classmethod | property) or inspect.isfunction(member)
        if callable_ and documented(member):
            yield name, member


def documented(member: Any) -> str:
    return inspect.cleandoc(getattr(member, "__doc__", None) or "")


def annotation(given: Any) -> str:
    """Return a type as a program writes it.

    >>> annotation("Transaction | Database"), annotation(int), annotation(list[int])
    ('Transaction | Database', 'int', 'list[int]')
    """
    text = given if isinstance(given, str) else getattr(given, "__name__", None)
    if not isinstance(text, str) or getattr(given, "__args__", None):
        text = str(given)
    return re.sub(r"\b(?:typing|collections\.abc|fdbqueue(?:\.\w+)*)\.", "", text)


STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def signature(name: str, called: Any) -> str:
    """Return a signature; one with a long line has one parameter a line.

    >>> print(signature("f", lambda a, *, b=1: None))
    f(a, *, b=1)
    """
    try:
        found = inspect.signature(called)
    except (TypeError, ValueError):
        return name
    parts, star = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        text = STARS.get(parameter.kind, "") + parameter.name
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        typed = parameter.annotation is not parameter.empty
        text += f": {annotation(parameter.annotation)}" if typed else ""
        if parameter.default is not parameter.empty:
            text += f"{' = ' if typed else '='}{default(parameter.default)}"
        parts.append(text)
    returns = "" if found.return_annotation is found.empty else f" -> {annotation(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def default(value: Any) -> str:
    text = repr(value)
    return getattr(value, "__name__", "...") if " at 0x" in text or text.startswith("<") else text


SECTION = re.compile(r"^(Args|Raises|Returns|Attributes|Yields):\n((?:(?:    .*)?(?:\n|\Z))+)", re.MULTILINE)
PART = re.compile(r"^([A-Z][\w ,-]+)\n((?:(?:    .*)?(?:\n|\Z))+)", re.MULTILINE)
TABLE = re.compile(r"^(====+.*\n(?:.*\n)*?====+.*)(?=\n(?:\n|\Z)|\Z)", re.MULTILINE)
NAMES = {"Args": "Parameters", "Raises": "Errors"}


def markdown(text: str) -> str:
    """Return a docstring as Markdown.

    >>> markdown("Add.\\n\\nArgs:\\n    a: one number,\\n        of two.").splitlines()[2:]
    ['**Parameters**', '', '- `a`: one number, of two.', '', '']
    >>> markdown(">>> 1 + 1\\n2").split()
    ['```pycon', '>>>', '1', '+', '1', '2', '```']
    """
    text = inspect.cleandoc(text)
    text = SECTION.sub(lambda found: f"**{NAMES.get(found[1], found[1])}**\n\n{entries(found[2])}\n", text)
    text = PART.sub(lambda found: f"**{found[1]}.** {inspect.cleandoc(found[2])}\n\n", text)
    text = TABLE.sub(lambda found: f"\n```text\n{found[1]}\n```\n", text)
    text = re.sub(r"^( *)>>> (?:.*\n?)+?(?=\n|\Z)", fenced, text, flags=re.MULTILINE)
    return re.sub(r"\]\((?!https?:)[^)]*/([\w-]+\.md)\)", r"](\1)", text) + "\n"


def fenced(found: re.Match[str]) -> str:
    return f"\n```pycon\n{inspect.cleandoc(found[0])}\n```\n"


def entries(text: str) -> str:
    """Return the indented entries of a section, ``name: what it is``, as a list."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        begins = re.match(r"([\w*, ]+|\w+(?:\.\w+)+): (.*)", line)
        if begins and not line.startswith(" "):
            names = ", ".join(f"`{name}`" for name in re.split(r", *", begins[1]))
            lines.append(f"- {names}: {begins[2]}")
        elif lines and line.strip():
            lines[-1] += " " + line.strip()
        elif line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def class_body(name: str, kind: type, *, level: int) -> Iterator[str]:
    """Yield the texts of a class, with a heading for each method."""
    if issubclass(kind, BaseException) or getattr(kind, "_is_protocol", False):
        yield code(f"class {name}({', '.join(base.__name__ for base in kind.__bases__ if base is not object)})")
    else:
        yield code(signature(name, kind))
    yield markdown(documented(kind))
    for method, member in methods(kind):
        yield f"{'#' * (level + 1)} {name}.{method}\n"
        if isinstance(member, property):
            yield code(f"{method}: {annotation(getattr(member.fget, '__annotations__', {}).get('return', 'Any'))}")
        else:
            called = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            awaitable = "\n# and the same with await: .aio" if isinstance(member, Verb) else ""
            yield code(signature(method, called) + awaitable)
        yield markdown(documented(member))


def function_body(name: str, one: Any) -> Iterator[str]:
    if isinstance(one, BoundVerb | Verb) or callable(one):
        yield code(signature(name, one))
    own = documented(one) if not isinstance(one, str | int | tuple) else ""
    yield markdown(own or "A value; see its class.")


def page(title: str, parts: Iterator[str]) -> str:
    return f"# {title}\n\n" + "\n".join(parts)


def pages() -> dict[str, str]:
    """Return all pages, by their file's name."""
    found: dict[str, str] = {}
    toc: dict[str, list[str]] = {}
    for place, names in public().items():
        small: list[str] = []
        errors: list[str] = []
        toc[place] = []
        for name, one in names:
            if inspect.isclass(one) and issubclass(one, BaseException):
                errors += [f"## {name}\n", *class_body(name, one, level=2)]
            elif inspect.isclass(one) and len(list(methods(one))) >= OWN_PAGE:
                head = [f"`from {place} import {name}`\n"]
                found[f"{name}.md"] = page(name, iter([*head, *class_body(name, one, level=1)]))
                toc[place].append(name)
            elif inspect.isclass(one):
                small += [f"## {name}\n", *class_body(name, one, level=2)]
            else:
                small += [f"## {name}\n", *function_body(name, one)]
        stem = place.replace(".", "-")
        if small:
            found[f"{stem}.md"] = page(PLACES[place], iter(small))
            toc[place].append(stem)
        if errors:
            file = "errors" if place == "fdbqueue" else f"{stem}-errors"
            title = "Errors" if place == "fdbqueue" else f"Errors and signals of {place}"
            found[f"{file}.md"] = page(title, iter(errors))
            toc[place].append(file)
    found["recipes.md"] = page("Recipes: what each layer promises", recipes())
    found["command-line.md"] = page("Commands", commands())
    found["keys.md"] = page("Keys", iter([keys()]))
    found["kernel.md"] = page("The kernel", kernel.body())
    found["README.md"] = contents(found, toc)
    return found


def recipes() -> Iterator[str]:
    """Yield the page of each layer: challenge, keys, ordering, guarantees, limits, source."""
    folder = Path(fdbqueue.__file__).parent / "layers"
    for path in sorted(folder.glob("*/__init__.py")):
        module = importlib.import_module(f"fdbqueue.layers.{path.parent.name}")
        text = documented(module)
        if "Challenge\n" in text:
            yield f"## {path.parent.name}\n\n{markdown(text)}"


def keys() -> str:
    text = inspect.cleandoc(key_table.__doc__ or "")
    return markdown(text[text.index("All keys of") :])


def commands() -> Iterator[str]:
    """Yield the help of each command."""
    yield "Each command has `--help` with the same text. Names of options are long or short.\n"
    group = typer.main.get_group(app)
    yield from commands_of(group, "fdbqueue", 2)


def commands_of(group: Any, prefix: str, level: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        full = f"{prefix} {name}"
        yield f"{'#' * level} {full}\n\n{re.sub(r' {2,}', ' ', help_text(command.help or ''))}\n"
        if hasattr(command, "commands"):
            yield from commands_of(command, full, level + 1)
            continue
        rows = [row for parameter in command.params if (row := option(parameter))]
        if rows:
            yield "| argument or option | meaning |\n| --- | --- |\n" + "".join(rows)


def help_text(text: str) -> str:
    """Return a command's help, its examples as blocks.

    >>> print(help_text("Do it, to [x]."))
    Do it, to \\[x\\].
    """
    paragraphs = []
    for paragraph in re.split(r"\n\n+", inspect.cleandoc(text).replace("\b\n", "")):
        is_example = re.match(r" *\$ |Examples?:", paragraph)
        paragraphs.append(f"```text\n{paragraph}\n```" if is_example else re.sub(r"\s*\n\s*", " ", escaped(paragraph)))
    return "\n\n".join(paragraphs)


def escaped(text: str) -> str:
    """Return prose of a terminal as Markdown: what looks like HTML or a link there is none."""
    return re.sub(r"(`[^`]*`)|([<>*_\[\]|{}])", lambda found: found[1] or "\\" + found[2], text)


def option(parameter: Any) -> str:
    if getattr(parameter, "hidden", False):
        return ""
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
    names = [*names, *parameter.secondary_opts]
    metavar = f" {parameter.metavar}" if parameter.param_type_name == "option" and parameter.metavar else ""
    told = ", ".join(f"`{name}{metavar}`".replace("|", "\\|") for name in names)
    return f"| {told} | {escaped(getattr(parameter, 'help', None) or '')} |\n"


def contents(found: dict[str, str], toc: dict[str, list[str]]) -> str:
    """Return what the front page of the reference has besides its own text."""
    text = ""
    for place, files in toc.items():
        text += f"\n## {place}\n\n"
        for file in files:
            text += f"- [{found[file + '.md'].splitlines()[0][2:]}]({file}.md)\n"
    text += "\n## All\n\n"
    text += "- [Recipes: what each layer promises](recipes.md)\n- [Commands](command-line.md)\n"
    text += "- [Keys](keys.md)\n- [The kernel](kernel.md)\n"
    listed = [*(file for files in toc.values() for file in files), "recipes", "command-line", "keys", "kernel"]
    rest = ["../limits", "../agent-protocol", "../embedded-differences"]
    return text + "\n```{toctree}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join([*listed, *rest]) + "\n```\n"


@functools.cache
def anchors() -> dict[str, tuple[str, str]]:
    """Return the page and the anchor of each class and verb that the reference has, by ``Class`` and ``Class.verb``."""
    found = {"fdbqueue/stored/key_table.py": ("docs/reference/keys", "")}
    for file, text in pages().items():
        if file in ("README.md", "recipes.md", "command-line.md", "keys.md", "kernel.md"):
            continue
        for mark, name in re.findall(r"^(#+) ([A-Za-z_][\w.]*)$", text, re.MULTILINE):
            found.setdefault(name, (f"docs/reference/{file[:-3]}", "" if mark == "#" else slug(name)))
    return found


def slug(title: str) -> str:
    """Return the anchor of a heading, as a forge makes it.

    >>> slug("Queue.enqueue_many"), slug("On a cluster")
    ('queueenqueue_many', 'on-a-cluster')
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def write(folder: Path) -> None:
    """Write all pages beside the front page, which stays and gets the list of the others."""
    for name, text in pages().items():
        path = folder / name
        path.write_text((path.read_text() if path.exists() else "") + text)
