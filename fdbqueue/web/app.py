"""The web page as an ASGI application."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import anyio.to_thread
import jinja2
from markupsafe import escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fdbqueue import FDBError, FdbQueueError, Position, Queue, QueueRenamed, UnknownQueue
from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import ANSWER_SECONDS, NO_ANSWER, told
from fdbqueue.engine.keys import is_within
from fdbqueue.layers import Groups, Leases, Subscriptions
from fdbqueue.layers.schedules import Schedules
from fdbqueue.layers.sessions import Sessions
from fdbqueue.reads.queue_rows import ITEM_STATES
from fdbqueue.reads.trouble import Trouble, Troubles, rank_of
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.names import queue_text, session_named, session_text, text_named
from fdbqueue.web import changes, looks, shown
from fdbqueue.web.guard import LOOPBACK, Guard
from fdbqueue.web.looks import LISTED_STATES, WantedItems, search
from fdbqueue.web.sampling import Sampler
from fdbqueue.web.shown import Sayings

Shown: TypeAlias = dict[str, Any]
"""What a template shows, by its names there."""
_log = logging.getLogger("fdbqueue.web")
HERE = Path(__file__).parent
QUEUES_A_PAGE = 100
SESSION_STATES = ("ready", "busy", "gated", "waiting", "paused", "blocked", "idle")
OWN_TABLES = ("first items", "last items", "who works on what", "largest sessions", "dead letters by error")
"""Tables of an inspection that the queue's page shows in its own way, with links."""
STATIC = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class AdminApp:
    """The pages about the queues of one database, as an ASGI application.

    `fdbqueue web` serves it on the loopback interface. Mount it in an application of your own behind your own login.

    Args:
        db: the database.
        allow_changes: whether the page has buttons that change something. Without it every change is refused.
        hosts: the names under which it is served, without ports; None: any, if a server in front checks the name.
        token: what a browser must log in with; None: no login, for the loopback interface or behind your own.
        within: only queues below this name are shown and changed; None: all.

    Raises:
        TypeError, ValueError: an argument is of another kind; the token has fewer than 16 characters.

    >>> import fdbqueue
    >>> from fdbqueue.web import AdminApp
    >>> app = AdminApp(fdbqueue.open("memory:"))
    >>> app
    AdminApp(<Database memory:>, allow_changes=False)
    """

    def __init__(
        self,
        db: Database,
        *,
        allow_changes: bool = False,
        hosts: Collection[str] | None = LOOPBACK,
        token: str | None = None,
        within: Name | None = None,
    ) -> None:
        if not hasattr(db, "create_transaction"):
            raise TypeError(f"AdminApp takes a database, as fdbqueue.open returns it, not {db!r}.")
        if not isinstance(allow_changes, bool):
            raise TypeError(f"allow_changes is True or False, not {allow_changes!r}.")
        if isinstance(hosts, str):
            raise TypeError(f"hosts is a list of names, as in hosts=[{hosts!r}].")
        named: Any = () if hosts is None else hosts
        if not isinstance(named, Collection) or not all(isinstance(host, str) for host in named):
            raise TypeError(f"hosts is a list of names, or None for any, not {hosts!r}.")
        secret: Any = "" if token is None else token
        if not isinstance(secret, str):
            raise TypeError(f"token is a text, or None for no login, not {token!r}.")
        if token is not None and len(token) < 16:
            raise ValueError("The token is a text of at least 16 characters, as secrets.token_urlsafe() makes one.")
        self._db = db
        self._changes = allow_changes
        self._has_login = token is not None
        self._within = within
        self.sampler = Sampler(db, within)
        self._told = Sayings()
        self._pages = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            finalize=shown.clean,
        )
        self._pages.filters.update(
            number=shown.number,
            when=shown.when,
            span=shown.span,
            cell=shown.cell,
            clean=shown.clean,
            exact=escape,
            column=shown.column,
            heading=shown.heading,
            dict=dict,
        )
        get, post = ["GET"], ["POST"]
        pages: dict[str, Callable[[Request], Shown]] = {
            "queue": self._queue_of,
            "items": self._items_of,
            "item": self._item_of,
            "dead": self._dead_of,
            "sessions": self._sessions_of,
            "session": self._session_of,
            "parts": self._parts_of,
        }
        shows = partial(partial, self._shown)
        self.routes = [
            Route("/", shows(template="overview.html", read=self._overview_of), methods=get),
            *(Route(f"/{at}", shows(template=f"{at}.html", read=read), methods=get) for at, read in pages.items()),
            Route("/preview", shows(template="preview.html", read=self._preview_of), methods=post),
            Route("/apply", self._apply, methods=post),
            Route("/login", self._login, methods=[*get, *post]),
            Route("/static/{name}", self._static, methods=get),
        ]
        told = (FdbQueueError, FDBError, ValueError, TypeError, TimeoutError, HTTPException)
        handlers: Any = {**dict.fromkeys(told, self._failed), Exception: self._broken}

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            self.sampler.close()

        self._app = Guard(
            Starlette(routes=self.routes, exception_handlers=handlers, lifespan=lifespan), hosts=hosts, token=token
        )

    def __repr__(self) -> str:
        return f"AdminApp({self._db!r}, allow_changes={self._changes})"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the thread that reads the figures, if this is mounted where no lifespan reaches it."""
        self.sampler.close()

    # Pages. Each is read in a thread, as its verbs wait for the database.

    def _overview_of(self, request: Request) -> Shown:
        sample = self.sampler.look()
        needle = request.query_params.get("find", "").casefold()
        troubles: dict[str, list[Trouble]] = {}
        for one in sample.troubles:
            troubles.setdefault(one.queue, []).append(one)
        wanted = [info for info in sample.queues if needle in info.text.casefold()]
        wanted.sort(key=lambda info: rank_of(troubles.get(info.text, ())))  # stable: else in the order of their keys
        after = request.query_params.get("after", "")
        begin = next((at + 1 for at, info in enumerate(wanted) if info.text == after), 0)
        page = wanted[begin : begin + QUEUES_A_PAGE]
        rows = []
        for info in page:
            history = self.sampler.history(info.text)
            came, went = history.rates
            line = shown.spark(history.depths)
            rows.append({"info": info, "in": came, "out": went, "spark": line, "troubles": troubles.get(info.text, ())})
        more = page[-1].text if len(wanted) > begin + QUEUES_A_PAGE else ""
        found = {info.text for info in wanted}
        needs = Troubles(one for one in sample.troubles if one.needs_you and one.queue in found)
        head = {"heading": needs.heading, "needs": needs}
        age = time.time() - sample.at
        return {"rows": rows, "sample": sample, "found": len(wanted), "more": more, "age": age, **head}

    def _queue_of(self, request: Request) -> Shown:
        queue = self._opened(request)
        page = queue.inspect(self._db)
        history = self.sampler.history(queue_text(queue.layout.prefix))
        came, went = history.rates
        sessions, own = page.sessions, Sessions(queue)
        errors, read = looks.errors_of(self._db, queue) if page.stats.dead else ([], 0)
        return {
            "page": page,
            "spark": shown.spark(history.depths, 480, 60),
            "deepest": int(max(history.depths, default=0.0)),
            "began": history.looks[0].at if history.looks else None,
            "errors": errors[: looks.MOST_ERRORS],
            "errors_read": read,
            "rates": (came, went),
            "busy": () if sessions is None else sessions.busy[: looks.MOST_BUSY],
            "largest": () if sessions is None else [(one, own.info(self._db, one.session)) for one in sessions.largest],
            "tables": [table for table in page.tables() if not table.title.startswith(OWN_TABLES)],
        }

    def _items_of(self, request: Request) -> Shown:
        queue, given = self._opened(request), request.query_params
        wanted = WantedItems(
            given.get("state", "available"), given.get("where", ""), given.get("text", ""), given.get("error", "")
        )
        after = given.get("after")
        page = search(self._db, queue, wanted, None if not after else Position.parse(after))
        more = "" if page.after is None else page.after.text
        return {
            "wanted": wanted,
            "found": page.items,
            "looked": page.looked_at,
            "more": more,
            "states": LISTED_STATES,
            "time": ITEM_STATES[wanted.state][2:],
        }

    def _item_of(self, request: Request) -> Shown:
        queue, given = self._opened(request), request.query_params
        position, session = Position.parse(given.get("position", "")), given.get("session", "")
        problem, item, notes = "", None, None
        try:
            if session:
                item = Sessions(queue).get(self._db, session_named(session), position)
            else:
                item = queue.get(self._db, position)
                notes = looks.notes_at(self._db, queue, position)
        except FdbQueueError as error:
            problem, notes = str(error), looks.notes_at(self._db, queue, position)
        if item is None and not problem:
            raise HTTPException(404, f"The item {position.text} has left the queue {given['queue']}.")
        value, is_cut = ("", False) if item is None else shown.plain(item.value)
        headers = "" if item is None else shown.plain(dict(item.headers))[0]
        return {
            "position": position.text,
            "session": session,
            "item": item,
            "notes": notes,
            "problem": problem,
            "value": value,
            "is_cut": is_cut,
            "headers": headers if item is not None and item.headers else "",
        }

    def _dead_of(self, request: Request) -> Shown:
        queue = self._opened(request)
        groups, read = looks.errors_of(self._db, queue)
        return {"groups": groups, "read": read, "total": queue.stats(self._db).dead}

    def _sessions_of(self, request: Request) -> Shown:
        sessions, given = Sessions(self._opened(request)), request.query_params
        status, after = given.get("status", ""), given.get("after", "")
        if status and status not in SESSION_STATES:
            raise ValueError(f"A session is {', '.join(SESSION_STATES)}, not {status[:40]!r}.")
        begin = session_named(after) if after else None
        chosen: Any = status or None
        found = list(sessions.list(self._db, status=chosen, after=begin, limit=looks.MOST_LISTED + 1))
        page = found[: looks.MOST_LISTED]
        return {
            "found": [(session_text(one.session), one) for one in page],
            "status": status,
            "states": SESSION_STATES,
            "totals": sessions.stats(self._db),
            "gates": [(session_text(one.gate), one) for one in islice(sessions.gates(self._db), looks.MOST_LISTED + 1)],
            "more": session_text(page[-1].session) if len(found) > len(page) else "",
        }

    def _session_of(self, request: Request) -> Shown:
        sessions = Sessions(self._opened(request))
        name = session_named(request.query_params.get("session", ""))
        text = session_text(name)
        info = sessions.info(self._db, name)
        if info is None:
            raise HTTPException(404, f"The session {text} has no items, no dead letters and no pause.")
        scheduled = sessions.scheduled(self._db, name, limit=looks.MOST_LISTED, on_bad="null")
        dead = sessions.dead(self._db, name, limit=looks.MOST_LISTED, on_bad="null")
        return {"info": info, "session": text, "scheduled": scheduled, "dead": dead}

    def _parts_of(self, request: Request) -> Shown:
        queue, text = self._opened(request), request.query_params.get("after")
        after = text_named(text, "group") if text else None
        groups = Groups(Leases(queue)).list(self._db, after=after, limit=looks.MOST_LISTED)
        return {
            "subscriptions": list(Subscriptions(queue).stats(self._db, after=after, limit=looks.MOST_LISTED)),
            "streams": looks.streams_of(self._db, queue),
            "groups": [(session_text(one.name), one.stats(self._db)) for one in groups],
            "schedules": Schedules(queue, time.time).list(self._db)[: looks.MOST_LISTED],
        }

    # Changes.

    def _preview_of(self, request: Request) -> Shown:
        self._check_allowed()
        name, fields, positions = _form(request)
        queue = self._opened(request, fields)
        found = changes.preview(self._db, queue, name, fields, positions)
        kept = {key: value for key, value in fields.items() if key not in ("csrf", "position", "most")}
        if name == "session-cancel":
            kept["position"] = fields.get("position", "")
        return {"name": name, "found": found, "kept": kept, "fields": fields}

    async def _apply(self, request: Request) -> Response:
        done = await anyio.to_thread.run_sync(self._applied, request)
        return RedirectResponse(done, 303)

    def _applied(self, request: Request) -> str:
        self._check_allowed()
        name, fields, positions = _form(request)
        queue = self._opened(request, fields)
        number = changes.apply(self._db, queue, name, fields, positions)
        _log.info("%s by the web page: %d", name, number, extra={"queue": fields["queue"], "change": name})
        self.sampler.refresh()
        told = self._told.keep(changes.change_named(name).done(fields, number))
        page = "session" if name.startswith("session-") and name != "session-remove" else _page_behind(name)
        query = {"queue": fields["queue"], "told": told}
        if page == "session":
            query["session"] = fields["session"]
            if Sessions(queue).info(self._db, session_named(fields["session"])) is None:
                page = "sessions"
        return _url(request, page, **query)

    def _check_allowed(self) -> None:
        if not self._changes:
            raise HTTPException(403, "This page changes nothing. To allow it: fdbqueue web --allow-changes.")

    # What all pages share.

    async def _login(self, request: Request) -> Response:
        if not self._has_login:
            return RedirectResponse(_url(request, ""), 303)
        return self._page(request, "login.html", {"wrong": "wrong" in request.query_params})

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404, "There is no such file.")
        return FileResponse(HERE / "static" / name, media_type=STATIC[name], headers={"Cache-Control": "max-age=3600"})

    def _opened(self, request: Request, fields: Mapping[str, str] | None = None) -> Queue:
        text = (request.query_params if fields is None else fields).get("queue", "")
        queue = looks.queue_named(self._db, text)
        if self._within is not None and not is_below(queue.layout, self._within):
            raise HTTPException(404, f"The queue {text} is not among those of this page.")
        request.scope["fdbqueue.queue"] = queue_text(queue.layout.prefix)
        return queue

    async def _shown(self, request: Request, template: str, read: Callable[[Request], Shown]) -> Response:
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                found = await anyio.to_thread.run_sync(read, request, abandon_on_cancel=True)
        except TimeoutError:
            raise TimeoutError(NO_ANSWER) from None
        return self._page(request, template, found)

    def _page(self, request: Request, template: str, found: Shown, status: int = 200) -> Response:
        fields = request.scope.get("fdbqueue.form")
        given = dict(fields) if fields is not None else request.query_params
        page = self._pages.get_template(template)
        common = {
            "url": lambda page, **query: _url(request, page, **query),
            "csrf": request.scope.get("fdbqueue.csrf", ""),
            "changes": self._changes,
            "kinds": changes.CHANGES,
            "item_states": LISTED_STATES,
            "no_error": looks.NO_ERROR,
            "queue": request.scope.get("fdbqueue.queue", given.get("queue", "")),
            "given": given,
            "told": self._told.take(request.query_params.get("told", "")),
            "plain": lambda value: shown.plain(value)[0],
            "session_text": session_text,
            "link_of": lambda trouble: _url(request, looks.page_of(trouble)[0], **looks.page_of(trouble)[1]),
        }
        return HTMLResponse(page.render({**common, **found}), status)

    async def _broken(self, request: Request, error: Exception) -> Response:
        _log.error("A page has a fault.", exc_info=error, extra={"path": request.url.path})
        detail = f"The page has a fault: {type(error).__name__}. The server's log has the rest."
        return self._page(request, "failed.html", {"status": 500, "detail": detail}, 500)

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = _status_of(error)
        detail = error.detail if isinstance(error, HTTPException) else told(error)
        if status >= 500:
            _log.warning("A page failed: %s", detail, extra={"path": request.url.path})
        return self._page(request, "failed.html", {"status": status, "detail": detail}, status)


def _status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, UnknownQueue | QueueRenamed):
        return 404
    if isinstance(error, FDBError | TimeoutError):
        return 503
    if isinstance(error, FdbQueueError) and not isinstance(error, ValueError):
        return 409
    return 400


def _form(request: Request) -> tuple[str, dict[str, str], list[str]]:
    """Return the name of the change, the fields of the form, and the chosen items."""
    form: list[tuple[str, str]] = request.scope["fdbqueue.form"]
    fields = dict(form)
    name = fields.get("change", "")
    positions = [] if name == "session-cancel" else [value for key, value in form if key == "position" and value]
    return name, fields, positions


def _page_behind(change: str) -> str:
    return {
        "redrive": "dead",
        "purge": "dead",
        "session-remove": "sessions",
        "schedule-pause": "parts",
        "schedule-resume": "parts",
    }.get(change, "queue")


def _url(request: Request, page: str, **query: str | None) -> str:
    base = request.scope.get("root_path", "")
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{base}/{page}" + (f"?{urlencode(given)}" if given else "")


def is_below(layout: Layout, within: Name) -> bool:
    return is_within(layout.prefix, Layout(within).prefix)
