"""Build the site: ``python -m docs.site [FOLDER]``, as ``make docs`` does. With ``--serve`` show it."""

from __future__ import annotations

import argparse
import functools
import http.server
import sys
from pathlib import Path

from .build import build

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.site", description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--serve", action="store_true", help="show it on this machine only")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    if code := build(ROOT, given.folder):
        return code
    print(f"{given.folder}/index.html", file=sys.stderr)
    if given.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(given.folder))
        with http.server.ThreadingHTTPServer(("127.0.0.1", given.port), handler) as server:
            print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", file=sys.stderr)
            server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
