"""Parts of several layers: shared transactions, waiting, handlers, levels, and which layer goes on which."""
