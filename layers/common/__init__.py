"""Parts of several layers: shared transactions, waiting, handlers, levels, and the rules for stacking layers."""
