"""What every request must pass before a page sees it, and the headers that every answer has.

- The host must be one of ours. A page of another name that resolves to this machine (DNS rebinding) is refused.
- A change must come from our own page: its `Origin`, or `Sec-Fetch-Site`, says so, and its form has a token that
  belongs to the browser's cookie. A page elsewhere can send neither.
- With a token, a browser must have logged in by it, and a program must send it as ``Authorization: Bearer``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SAFE = ("GET", "HEAD")
MOST_BODY = 65_536
"""The largest form, in bytes."""
BROWSER = "fdbqueue_browser"
LOGIN = "fdbqueue_login"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """An ASGI middleware.

    Args:
        app: what it guards.
        hosts: the names in a `Host` header, without a port; None: all, if another server has checked it.
        token: what a request must have; None: no request needs one.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, token: str | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._token = token
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in given)]
                if BROWSER not in request.cookies:
                    message["headers"].append((b"set-cookie", _cookie(request, BROWSER, scope["fdbqueue.browser"])))
            await send(message)

        scope["fdbqueue.browser"] = request.cookies.get(BROWSER) or secrets.token_urlsafe(18)
        scope["fdbqueue.csrf"] = self.csrf(scope["fdbqueue.browser"])
        refusal = await self._refusal(request)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def csrf(self, browser: str) -> str:
        return hmac.new(self._secret, browser.encode(), hashlib.sha256).hexdigest()

    async def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that may not pass; None: it may."""
        if self._hosts is not None and _host(request) not in self._hosts:
            return PlainTextResponse(
                f"This page is not served under the name {_host(request)!r}. Allow it: fdbqueue web --host NAME, or"
                " AdminApp(hosts=[...]).",
                400,
            )
        if request.method not in (*SAFE, "POST"):
            return PlainTextResponse("Only GET and POST are served.", 405)
        if request.method == "POST":
            if not _from_our_page(request):
                return PlainTextResponse("A change must be sent by this page. Reload it, and try again.", 403)
            form = await _form(request)
            if form is None:
                return PlainTextResponse(f"A form has at most {MOST_BODY:,} bytes.", 413)
            request.scope["fdbqueue.form"] = form
            given = dict(form).get("csrf", "")
            if BROWSER not in request.cookies or not _same(given, request.scope["fdbqueue.csrf"]):
                return PlainTextResponse("The form is too old, or not of this page. Reload it, and try again.", 403)
        return self._login(request)

    def _login(self, request: Request) -> Response | None:
        if self._token is None or _path(request).startswith("/static/"):
            return None
        wanted = hashlib.sha256(self._token.encode()).hexdigest()
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer, self._token):
            return None
        if _same(request.cookies.get(LOGIN, ""), wanted):
            return None
        base = request.scope.get("root_path", "")
        if _path(request) != "/login":
            if request.method in SAFE and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse(f"{base}/login", 303)
            return PlainTextResponse("A token is needed: log in, or send Authorization: Bearer.", 401)
        if request.method == "POST":
            given = dict(request.scope["fdbqueue.form"]).get("token", "")
            if not _same(given, self._token):
                return RedirectResponse(f"{base}/login?wrong=1", 303)
            answer = RedirectResponse(f"{base}/", 303)
            answer.raw_headers.append((b"set-cookie", _cookie(request, LOGIN, wanted)))
            return answer
        return None


def _same(given: str, wanted: str) -> bool:
    """Compare a secret, in a time that does not depend on where they differ; `given` may be any text."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


def _path(request: Request) -> str:
    base = request.scope.get("root_path", "")
    path: str = request.scope["path"]
    return path[len(base) :] if base and path.startswith(base) else path


def _host(request: Request) -> str:
    """Return the host without its port, as it is in the header."""
    host = request.headers.get("host", "").lower()
    name, _, port = host.rpartition(":")
    return name if name and port.isdecimal() else host


def _from_our_page(request: Request) -> bool:
    origin = request.headers.get("origin")
    if origin is not None:
        try:
            return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
        except ValueError:  # it is no address
            return False
    return request.headers.get("sec-fetch-site") == "same-origin"


async def _form(request: Request) -> list[tuple[str, str]] | None:
    """Return the fields of a form; None if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            return None
    return parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)


def _cookie(request: Request, name: str, value: str) -> bytes:
    path = request.scope.get("root_path", "") or "/"
    secure = "; Secure" if request.scope["scheme"] == "https" else ""
    return f"{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}".encode()
