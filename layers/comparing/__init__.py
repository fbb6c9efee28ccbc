"""Comparing: what `fdbqueue.layers.smart` is made of. Queued items are found, and asked about a newcomer."""
