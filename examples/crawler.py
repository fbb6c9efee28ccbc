"""A crawler: each page once, at most two requests to a host at once, and a host that is slow holds up no other.

    python -m examples.crawler http://127.0.0.1:8000/ --url file:crawl      # a site of yours
    python -m examples.crawler                                             # two small sites that it serves itself

Each page is a session of its own, so that it is fetched once at a time. Its host is a gate. What a page links to is
enqueued in the transaction that ends the page, if no transaction did so before. Kill it at any time and run it again.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import fdbqueue
from fdbqueue.layers import ACKED, Consumer, Gate, SessionLease, Sessions, exponential

AT_ONCE = 2
SEEN = fdbqueue.Subspace(("crawler", "seen"))


def gates(page: str) -> list[Gate]:
    """Return the limit that a page shares with all pages of its host."""
    return [Gate(("host", urlsplit(page).netloc), limit=AT_ONCE)]


pages = Sessions(fdbqueue.Queue("crawler", codec="str"), gates=gates, max_attempts=3, backoff=exponential(first=1.0))


@fdbqueue.transactional
def visit(tr: Any, found: list[str]) -> None:
    """Enqueue pages that nobody has enqueued before."""
    new = [page for page in found if not tr[SEEN.pack((page,))].present()]
    for page in new:
        tr[SEEN.pack((page,))] = b""
        pages.enqueue(tr, page, session=page)


@fdbqueue.transactional
def finish(tr: Any, lease: SessionLease[str], found: list[str]) -> None:
    visit(tr, found)
    pages.ack(tr, lease)


def links(page: str, text: str) -> list[str]:
    """Return the pages of the same host that a page links to."""
    found = {urljoin(page, target).partition("#")[0] for target in re.findall(r'href="([^"]+)"', text)}
    return sorted(one for one in found if urlsplit(one).netloc == urlsplit(page).netloc)


def crawl(db: fdbqueue.Database, starts: list[str], *, concurrency: int = 16) -> int:
    """Visit all pages that can be reached. Return how many this process has fetched."""
    visit(db, starts)

    def fetch(lease: SessionLease[str]) -> object:
        with urllib.request.urlopen(lease.value, timeout=10) as answer:
            text = answer.read(1_000_000).decode(errors="replace")
        finish(db, lease, links(lease.value, text))
        return ACKED

    return Consumer(pages, fetch, concurrency=concurrency).drain(db).acked


class Site(http.server.ThreadingHTTPServer):
    """A site of some pages for a try. It counts visits, and how many requests it had at once."""

    def __init__(self, size: int) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.size, self.visits, self.most = size, Counter[str](), 0
        self.now, self.lock = 0, threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/0"


class Page(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, number = self.server, int(self.path.strip("/") or 0)
        with site.lock:
            site.now += 1
            site.most = max(site.most, site.now)
            site.visits[self.path] += 1
        time.sleep(0.01)  # a page takes its time
        with site.lock:
            site.now -= 1
        body = "".join(f'<a href="/{n}">' for n in (2 * number + 1, 2 * number + 2) if n < site.size).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def two_sites(size: int = 40) -> Iterator[list[Site]]:
    sites = [Site(size), Site(size)]
    for site in sites:
        threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        yield sites
    finally:
        for site in sites:
            site.shutdown()
            site.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.crawler")
    parser.add_argument("starts", nargs="*", help="pages to begin at; none: two sites that it serves itself")
    parser.add_argument("--url", default="memory:", help="the database, such as file:crawl")
    given = parser.parse_args()
    with fdbqueue.open(given.url) as db:
        if given.starts:
            print(crawl(db, given.starts), "pages fetched")
            return
        with two_sites() as sites:
            print(crawl(db, [site.address for site in sites]), "pages fetched")
            for site in sites:
                print(f"{site.address}: {len(site.visits)} pages, at most {site.most} requests at once")


if __name__ == "__main__":
    main()
