"""Benchmarks: this package beside plain Celery, stock beat and other schedulers, in one run on one machine.

What they believe:

* A number of one machine says nothing on another. Contenders take turns within the same run, on the same
  private server, and what counts is the ratio of their medians.
* What is measured is what a user would have: schedulers are driven as beat drives them, failover is that
  of real `celery beat` processes, and the verdict is read from the messages.
* A contender is measured at its best setting that is safe, and the setting is printed.
* A requirement is a check: it passes or fails, and a failure is the exit code.
"""
