"""Subscribing: what `layers.subscriptions` is made of. A subscription points, waits, is pushed to, and has credit."""
