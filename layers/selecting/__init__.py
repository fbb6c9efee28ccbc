"""Selecting: what `fdbqueue.layers.selectors` is made of. A condition is parsed and becomes a function."""
