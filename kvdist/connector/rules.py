"""The rules behind the tables, one function each: what has to hold before something is done.

Owns:   nothing; all are pure predicates.
Knows nothing of: messages, timers.
Each is named for what it allows, and says which rule of docs/protocol.md it is. Tests turn them
off one by one and show the sequence of events that then breaks a promise.
"""

from collections.abc import Sequence

from kvdist.ids import Incarnation


def is_same_run(named: Incarnation, ours: Incarnation) -> bool:
    """T5: what was said to an earlier run of this node means nothing to this one."""
    return named == ours


def may_lend(leased: int, more: int, pool: int, longest: int) -> bool:
    """T10: leases leave room for one longest sequence, so that the node can always go on."""
    return leased + more <= pool - longest


def is_same_content(wanted: bytes, lent: bytes) -> bool:
    """T6: a lease serves the very tokens that it was made for."""
    return wanted == lent


def may_take_over(holder_is_open: bool) -> bool:
    """T19: another reader waits while a pull of the first is open, and takes over afterwards."""
    return not holder_is_open


def may_resume(resume: int, local: int, known: int, resumes_anywhere: bool) -> int:
    """T6: how many tokens can be loaded after `local` ones, so that every group can resume.

    One token at least is left to compute (S9); where states or windows are kept, only the very
    token that the lease ends at will do.
    """
    if resume > known - 1:
        if not resumes_anywhere or resume > known:
            return 0
        resume = known - 1
    return max(0, resume - local)


def may_confirm(is_open: bool) -> bool:
    """T4, T25: the bytes are good if the hold they were read under still stands; the lease's clock
    plays no part.
    """
    return is_open


def may_return(unacknowledged: Sequence[object]) -> bool:
    """T15: blocks go back only when every worker has acknowledged the revocation."""
    return not unacknowledged


def may_issue(unacknowledged: Sequence[object]) -> bool:
    """T15: the ticket leaves only when every worker can serve it."""
    return not unacknowledged


def may_cancel(other_waiters: int) -> bool:
    """T20: a pull is cancelled only when nobody waits for it any more."""
    return other_waiters == 0


def all_parts(ended: int, parts: int) -> bool:
    """A pull is loaded, or quiet, only if every part of it is."""
    return ended == parts


def readable(settled: int, first: int, last: int, is_state: bool) -> int:
    """T1, T7: up to which token of [first, last) the bytes may be served; a state is whole or not
    there.
    """
    if is_state:
        return last if settled >= last else first
    return max(first, min(last, settled))


def may_park(parked: int, of_peer: int, most: int, most_of_peer: int) -> bool:
    """T14: questions about transfers that aren't known yet wait in a bounded table, with a quota a
    peer.
    """
    return parked < most and of_peer < most_of_peer


def soft_room(share: int, lent: int, room: int) -> int:
    """T13: how many blocks more may be lent to a peer by hash: within its share, and T10."""
    return min(share - lent, room)


def burst_end(first: int, last: int, burst: int, is_state: bool) -> int:
    """T16: up to which token of [first, last) bytes move at a time. Bursts end where blocks do."""
    return last if is_state else min(last, (first // burst + 1) * burst)
