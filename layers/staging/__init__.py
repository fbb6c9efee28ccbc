"""Staging: what `layers.staged` is made of. Processes that want items from one head take turns instead of fighting."""
