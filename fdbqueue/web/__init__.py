"""The web page: queues, items, dead letters and sessions, for the person on call.

What is in here: an ASGI application, `AdminApp`, which `fdbqueue web` serves, and which you can mount in an application
of your own. It needs ``fdbqueue[web]``.

- `app.py` has the routes, and `guard.py` what every request must pass: host, origin, token, CSRF, headers.
- `looks.py` reads what a page shows. Each page makes a bounded number of reads, however long the queue is. It finds
  items by state, header and text, a stretch of the queue at a time.
- `sampling.py` remembers the figures of all queues for an hour, for rates and sparklines.
- `changes.py` has the buttons: each change is previewed with its number, and then confirmed.
- `shown.py` turns values, names and times into text that is safe to show. It cuts large values before they are decoded.

Who may use it: the command line, and a user's program. What it never does: change anything unless `allow_changes` is
given, decide something by itself, or load anything from another place.
"""

from fdbqueue.web.app import AdminApp

__all__ = ["AdminApp"]
