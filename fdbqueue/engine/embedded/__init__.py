"""The embedded engine: FoundationDB's transactions over LMDB, with no server, for one machine's processes.

*Below*, `store` keeps ordered keys durably and checks conflicts at commit. *Above*, a `Transaction` reads over its own
writes and answers as a cluster would through the official binding at API version 730.
"""

from fdbqueue.engine.embedded.database import Database, open_file, open_memory

__all__ = ["Database", "open_file", "open_memory"]
