"""Schedules: what is enqueued at its times, by any number of workers, each time once.

Challenge
    A call is to be enqueued at 7:00 each day. Any number of workers run, and their clocks differ. Processes are killed,
    or stopped for a while, and during a roll-out they have different code. Each time must come once.

Keys
    Behind the queue's own tuple:

    ======================  ==================================================
    ``("schedule", name)``  JSON: its rule, its next and its last tick, a pause
    ======================  ==================================================

Ordering
    That of the queue. The ticks of one schedule are enqueued in their order.

Guarantees
    The transaction that enqueues a tick reads the schedule's key, and moves it on. Of two workers one conflicts. So
    each tick is enqueued once, without a leader. Of two workers with different rules the one that starts last decides.
    Both then follow the stored rule, which an operator may change.

Limits
    A process whose clock is ahead enqueues ticks early, and once. A tick is late by up to a second. A schedule that no
    worker's code has is not enqueued. It is listed as stopped a minute after its next tick.

Source
    cronsim, which follows Debian's cron where the clock changes.
"""

from __future__ import annotations

from .schedules import CatchUp, Plan, Schedule, Schedules, rule_of

__all__ = ["CatchUp", "Plan", "Schedule", "Schedules", "rule_of"]
