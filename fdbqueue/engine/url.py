"""`open(url)`: open the database that a URL names. It never uses another engine than the URL's.

A path after the scheme is used unchanged, up to a ``?``: ``file:shop``, ``file:/var/shop``, ``file:~/100% tea``. After
``//`` it is the path of a URL (RFC 8089): absolute, with percent-escapes decoded, and on this machine. So the URL from
`pathlib.Path.as_uri` names the same folder.
"""

from __future__ import annotations

import os
from typing import NamedTuple, cast

from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import UrlError

THREE = "memory: (private, gone at close), file:PATH (a folder, durable) or fdb:[CLUSTER_FILE] (a cluster)"
SCHEMES = ("memory", "file", "fdb")


class Parsed(NamedTuple):
    """The parts of a database URL."""

    scheme: str
    path: str
    """Path of the folder or the cluster file, with ``~`` replaced by the home folder; "" if the URL has none."""
    options: dict[str, str]


def has_database(path: str) -> bool:
    """Return whether the folder `path` has a database, or one that this user may not see: opening it says why."""
    try:
        os.lstat(os.path.join(path, "data.mdb"))
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def parse(url: str) -> Parsed:
    """Return the parts of `url`.

    Raises:
        UrlError: `url` is none of the three kinds, or malformed.

    >>> parse("file:shop?durability=relaxed")
    Parsed(scheme='file', path='shop', options={'durability': 'relaxed'})
    >>> parse("file:///srv/tea%20shop").path
    '/srv/tea shop'
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        raise UrlError(f"{url!r} is not a database URL. Give one of {THREE}.")
    path, _, query = rest.partition("?")
    if rest.startswith("//") and scheme != "memory":
        path = _path_behind_slashes(url, scheme)
    else:
        path = os.path.expanduser(path)
    if "\0" in path:
        raise UrlError(f"{url!r}: a path has no byte 0.")
    from urllib.parse import parse_qsl  # half the time of importing the engine, and needed once

    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise UrlError(f"{url!r}: options after '?' must be NAME=VALUE pairs joined by '&', not {query!r}.") from error
    return Parsed(scheme, path, options)


def _path_behind_slashes(url: str, scheme: str) -> str:
    """Return the decoded path after ``//``."""
    from urllib.parse import unquote, urlsplit

    if "#" in url.partition("?")[0] or not url.isprintable():  # urlsplit would drop line ends and the part after '#'
        raise UrlError(f"{url!r}: write '#' as %23 behind //, and control characters as percent-escapes too.")
    try:
        split = urlsplit(url)
    except ValueError as error:
        raise UrlError(f"{url!r}: {error}.") from error
    if split.netloc.lower() not in ("", "localhost"):
        path = unquote(split.netloc + split.path)
        raise UrlError(
            f"{url!r}: {split.netloc!r} behind // would be a host. Write {scheme}:{path} for a relative path,"
            f" {scheme}:/{path} for an absolute one."
        )
    return unquote(split.path, errors="surrogateescape")


def open(url: str | None = None) -> Database:
    """Open the database that `url` names.

    Args:
        url: ``memory:``, ``file:PATH`` or ``fdb:[CLUSTER_FILE]``. The first two accept options after a ``?``, such as
            ``file:queue?durability=relaxed``. A path is used unchanged, and may begin with ``~``, the home folder.
            ``file:///PATH`` is absolute, with percent-escapes decoded. None reads the environment's ``FDBQUEUE_URL``.

    Returns:
        A database: it has `create_transaction`, the binding's reads and writes, and `close`, and works in ``with``. A
        database of ``fdb:`` connects at first use, in the process that uses it.

    Raises:
        UrlError: there is no URL, it is none of the three kinds, or it names a host.
        TypeError: `url` is no string.
        StorageError: the folder can't be used; the message says why.
        ClusterError: there is no cluster file. Whether the cluster answers shows at first use.

    >>> import fdbqueue
    >>> with fdbqueue.open("memory:") as db:
    ...     db[b"hello"] = b"world"
    ...     bytes(db[b"hello"])
    b'world'
    """
    if url is None:
        url = os.environ.get("FDBQUEUE_URL")
        if not url:
            raise UrlError(f"No database URL was given and FDBQUEUE_URL is not set. Give one of {THREE}.")
    if not isinstance(url, str):
        raise TypeError(f"A database URL is a str, one of {THREE}, not {type(url).__name__}.")
    scheme, path, options = parse(url)
    if scheme == "fdb":
        from fdbqueue.engine.cluster import ClusterDatabase

        if options:
            raise UrlError(f"{url!r}: a cluster's URL takes no options, but {', '.join(sorted(options))} were given.")
        database = ClusterDatabase(path or None)
        database.check_cluster_file()
        return cast(Database, database)
    from fdbqueue.engine import embedded

    if scheme == "memory":
        if path:
            raise UrlError(f"{url!r}: memory: takes no path. For a folder write file:PATH.")
        return cast(Database, embedded.open_memory(options=options))
    if not path:
        raise UrlError("file: needs the path of a folder, as in file:./queue.")
    return cast(Database, embedded.open_file(path, options=options))
