"""An explicit-state model of the lease, the slots and the outbox, checked state by state.

What is believed, and shown on every reachable state of a small scope:

* Without loss of data a slot's message is enqueued at most once (G1), also when requests wander in the
  network and are executed after their sender gave up, crashed or was deposed.
* A mark never stands without its message or record (G1, G2), except for what vanished in a lost suffix.
* Messages are enqueued in the order of their epochs, and at most one node holds the lease.
* From every state in which a node is up, the nodes that are up can bring every slot to its queue, without
  anybody being restarted, and without a healthy leader having to resign.

After a loss all this is said of what the store remembers. A deposed leader may find its lease restored,
and then send under an epoch older than that of a message which a worker took before the loss.

The parts: `server` is what the scripts do; it alone knows their guards, and it is the oracle to which
`conformance` holds the real scripts and the memory store. `world`, `steps` and `publishing` are around it:
nodes that pause, crash and time out, a network that delays and loses, time, workers, a broker, a Redis that
forgets a suffix. `search` walks all of it. `faults` takes guards out, to show that the checks would see.

Time is two bits: a tick makes a lease that is not renewed liable to expire, and a leader that does not emit
liable to be called overdue. Clients pause between any two steps, since any other step may come first.
"""
