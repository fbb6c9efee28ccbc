"""Watches: `changes` calls back after writes to keys, `notifier` wakes other processes through a `shared_page`."""
