"""Leasing: what `layers.leases` is made of. Items move between their places, and timers say when they have to."""
