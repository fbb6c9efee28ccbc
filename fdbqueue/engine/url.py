"""`open(url)`: from a URL to a database, never to another engine than the one asked for."""

from __future__ import annotations

import os
from typing import cast
from urllib.parse import parse_qsl

from fdbqueue.engine.api import Database
from fdbqueue.errors import UrlError

THREE = "memory: (private, gone at close), file:PATH (a folder, durable) or fdb:[CLUSTER_FILE] (a cluster)"


def open(url: str | None = None) -> Database:
    """Open the database that `url` names.

    Args:
        url: ``memory:``, ``file:PATH`` or ``fdb:[CLUSTER_FILE]``; the embedded two take options behind a ``?``, as
            in ``file:queue?durability=relaxed``. A path may begin with ``~``, the home folder. None reads the
            environment's ``FDBQUEUE_URL``.

    Returns:
        A database: `create_transaction`, the binding's own reads and writes, `close`, and use in ``with``. One of
        ``fdb:`` connects at first use, in the process that uses it.

    Raises:
        UrlError: no URL, or none of the three kinds.
        TypeError: no string.
        StorageError: the folder can't be used; the message says why.

    >>> with open("memory:") as db:
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
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in ("memory", "file", "fdb"):
        raise UrlError(f"{url!r} is not a database URL. Give one of {THREE}.")
    path, _, query = rest.partition("?")
    path = os.path.expanduser(path)
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise UrlError(f"{url!r}: behind the ? stand options, NAME=VALUE with & between, and not {query!r}.") from error
    if scheme == "fdb":
        from fdbqueue.engine.cluster import ClusterDatabase

        if options:
            raise UrlError(f"{url!r}: a cluster's URL takes no options, but {', '.join(sorted(options))} were given.")
        return cast(Database, ClusterDatabase(path or None))
    from fdbqueue.engine import embedded

    if scheme == "memory":
        if path:
            raise UrlError(f"{url!r}: memory: takes no path. For a folder write file:{path}.")
        return cast(Database, embedded.open_memory(options=options))
    if not path:
        raise UrlError("file: needs the path of a folder, as in file:./queue.")
    return cast(Database, embedded.open_file(path, options=options))
