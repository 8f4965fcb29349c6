"""The store remembers: Redis and memory behind the same protocols, one contract.

M1  Every promise that must be atomic is one script; its guards and its writes cannot be parted.
M2  A method that got no answer raises `StoreUnavailable`; it never returns "no".
M3  Asking again after a lost answer changes nothing: acquiring with one's own nonce returns the
    same grant, and emitting a slot again answers "already".
M4  Seconds and datetimes outside, milliseconds inside.
M5  The memory store is the specification: if Redis and memory disagree, read memory.
"""
