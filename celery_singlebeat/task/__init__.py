"""The task base class: a lock around each execution, backoff between attempts, dead letters at the end.

T1  The lock is taken and given back around the body, not in Celery's hooks, which are skipped for
    Ignore, Reject and Retry. However the body is reached, it is under its lock; however it ends, the lock
    is given back.
T2  An execution costs two round trips to the store: one before the body and one after it. Renewal is a
    thread of the process, shared by all its locks.
T3  Whether a lock is still held is judged by this process's own monotonic clock, from before the
    request was sent. No answer leaves that as it was.
T4  A call whose lock is taken does what its task says; a copy of a call that still runs elsewhere
    stands back without losing its message, and never without a delay.
T5  All state of an execution lives on its request. Nothing is written to a task object.
T6  Only the parent of a worker buries, before it acknowledges: it has the message as it came.
T7  A call made directly just runs the body. A call made eagerly needs no Redis and no settings.
"""
