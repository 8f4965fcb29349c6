"""Beat acts: the scheduler that Celery runs, and the elector that lets it.

Two threads. The *tick loop* is Celery's: it works out which slots are due, prepares their messages
and hands both to the store in one script. The *heartbeat* talks to the store about the lease; it
renews only while the tick loop turns.

B1  At most one message for a slot: the emit script asks for the token, the mark and the time at the
    moment of writing, whatever this process believes.
B2  Being deposed is a state, not an error: the process stands by and competes again. It never exits.
B3  A slot whose emission got no answer is looked up: it has its mark, or it is due still, as the same slot
    under the same task id.
B4  One bad entry, or one whose message cannot be made, never stops the others.
B5  A standby has its schedule loaded and writes nothing of it.
B6  Whatever a signal handler calls is bounded in time and takes no lock that the tick loop may hold.
B7  Due slots cost a script for each two hundred; idle entries cost nothing.
"""
