"""Replicas of beat in a storm of faults, a history of what happened, and a checker that reads nothing else.

    python -m tests.torture --duration 60 --seed 1

* `timetable` and `plan` decide, from the seed alone: which entries there are, which fault comes when.
* `site` holds the real things: Redis, proxies, beats. `faults` breaks them. `storm` is the one loop.
* `tap` drains the queues; what it takes survives lost replies and lost data without a message counted
  twice or not at all.
* `history` is the file between the storm and the judges: one JSON object a line.
* `checker` condemns or acquits, `flatness` says what grew, `picture` shows it. All three are pure.

A storm is not repeated exactly by its seed: the faults come in the same order with the same lengths, but
processes and servers are real and take their own time. The history is what can be judged again:

    python -m tests.torture --judge history.jsonl
"""
