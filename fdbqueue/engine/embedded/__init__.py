"""The embedded engine: FoundationDB's transactions over LMDB, with no server, for one machine's processes.

*Below*, `store` keeps ordered keys durably and checks conflicts at commit. *Above*, a `Transaction` reads over its own
writes and answers as a cluster would through the official binding at API version 730. General layout of that side::

    Database           where transactions come from                       database.py, options.py, optiontable.py
      Transaction      states, the commit, what special keys tell         transaction.py, special.py
        Writing        sets, clears, atomic operations, conflict ranges   writing.py
          Writes       what was written so far, in order                  writes.py, stacks.py, atomics.py
        Reading        what reads see, and the conflicts that they add    reading.py, views.py
          Reader       ranges and selectors over own writes               reads.py, lookahead.py, segments.py
          pages        what a storage server would answer                 pages.py, intervals.py
      futures          values, rows, commits, pauses, watches             futures.py, values.py, ranges.py, commits.py,
                                                                          pauses.py, watches.py
"""

from fdbqueue.engine.embedded.database import Database, open_file, open_memory

__all__ = ["Database", "open_file", "open_memory"]
