"""The embedded engine: FoundationDB's transactions over LMDB, without a server, for the processes of one machine.

`store` keeps ordered keys durably and checks conflicts at commit. `client` has the transactions on top: they read their
own writes and answer as a cluster does through the official binding at API version 730. The client uses the store, and
the store knows no client. General layout of the client::

    Database             creates transactions                            database.py, options.py
      Transaction        states, the commit, special keys                transaction.py, special_keys.py
        WriteApi         sets, clears, atomic operations                 write_api.py
          WriteBuffer    the writes so far, in order                     write_buffer.py
        ReadApi          reads, and the conflicts that they add          read_api.py
          RywIterator    ranges and selectors over own writes            ryw_iterator.py, segments.py
          pages          rows as a storage server returns them           pages.py
      futures            values, rows, commits, pauses, watches          futures.py, commits.py, pending.py
"""

from fdbqueue.engine.embedded.client.database import Database, open_file, open_memory

__all__ = ["Database", "open_file", "open_memory"]
