"""Celery signals for what celery-singlebeat does; connect to them as to Celery's own.

`leadership_lost` with the reason "closed" is sent from beat's signal handler when it gets SIGTERM or SIGINT,
wherever the process was. Its receivers must not use a client or a lock that the interrupted code may hold.

Each is sent with `sender` (the app) and the fields of its event as keyword arguments:

=====================  =====================================================
leadership_acquired    node, epoch, reason
leadership_lost        node, epoch, reason
slot_dispatched        entry, slot, epoch, lateness, task_id
slot_skipped           entry, slot, epoch, reason
slot_refused           entry, slot, epoch, reason
lock_acquired          task, task_id, key, fence
lock_conflict          task, task_id, key, holder, policy
lock_lost              task, task_id, key, fence
task_buried            task, task_id, reason, queue
task_replayed          task, task_id, queue, replays
=====================  =====================================================
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

leadership_acquired = Signal(name="leadership_acquired", providing_args=["node", "epoch", "reason"])
leadership_lost = Signal(name="leadership_lost", providing_args=["node", "epoch", "reason"])
slot_dispatched = Signal(
    name="slot_dispatched", providing_args=["entry", "slot", "epoch", "lateness", "task_id"]
)
slot_skipped = Signal(name="slot_skipped", providing_args=["entry", "slot", "epoch", "reason"])
slot_refused = Signal(name="slot_refused", providing_args=["entry", "slot", "epoch", "reason"])
lock_acquired = Signal(name="lock_acquired", providing_args=["task", "task_id", "key", "fence"])
lock_conflict = Signal(name="lock_conflict", providing_args=["task", "task_id", "key", "holder", "policy"])
lock_lost = Signal(name="lock_lost", providing_args=["task", "task_id", "key", "fence"])
task_buried = Signal(name="task_buried", providing_args=["task", "task_id", "reason", "queue"])
task_replayed = Signal(name="task_replayed", providing_args=["task", "task_id", "queue", "replays"])
