"""Notification of commits: `notifier` wakes processes that watch, `changes` finds out which keys were written."""
