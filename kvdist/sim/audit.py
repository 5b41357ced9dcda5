"""What has to hold in every node after every event, and when all is over.

Owns:   nothing.
Knows nothing of: how it came about.
"""

from collections import Counter
from typing import TYPE_CHECKING

from kvdist.connector.geometry import covers
from kvdist.connector.messages import VERSION, Role, Stream, since
from kvdist.connector.params import ByTransfer
from kvdist.connector.tables import claim as claims, part, pull as pulls
from kvdist.errors import InvariantViolation
from kvdist.ids import NodeId
from kvdist.sched.sequence import SequenceStatus

if TYPE_CHECKING:
    from kvdist.sim.node import SimNode

_C, _P = claims.State, pulls.State


def audit_node(node: "SimNode", level: int) -> None:
    """Raises: InvariantViolation."""
    manager = node.manager
    ledger = manager.ledger()
    if ledger.total != manager.config.num_blocks - 1:
        raise InvariantViolation(f"{ledger} of {manager.config.num_blocks - 1} blocks")
    _audit_leases(node)
    _audit_policy(node)
    _audit_contents(node)
    _audit_duties(node)
    _audit_contacts(node)
    _audit_shares(node)
    _audit_claims(node)
    if level >= 2:
        manager.check()


def _audit_leases(node: "SimNode") -> None:
    """Every block that a worker of this run may still serve is held (I4); who reads along finds
    blocks for all that it waits for (T11).
    """
    blocks = node.manager.block_pool.blocks
    for lease in node.half.lender.leases.values():
        if not covers(node.geometry, lease.blocks, lease.resume_tokens):
            raise InvariantViolation(f"T11: {lease.blocks} aren't all of {lease.resume_tokens}")
        sequence = node.scheduler.roster.sequences.get(lease.request_id or "")
        if not lease.is_held and sequence and sequence.status is SequenceStatus.PREEMPTED:
            raise InvariantViolation(f"T12: {lease.request_id} is preempted, and read along")
        for block_id in lease.block_ids:
            if not blocks[block_id].ref_cnt:
                raise InvariantViolation(f"block {block_id} is lent ({lease.lease.hex()}) and free")
    for worker in node.workers:
        for grant in worker.half.server.granted_blocks():
            if grant and not blocks[grant].ref_cnt:
                raise InvariantViolation(f"block {grant}, free, may be served by {worker.name}")


def _audit_policy(node: "SimNode") -> None:
    """Tokens are recomputed only as far as the policy allows."""
    settings = node.cluster.settings
    most = settings.max_recompute_tokens if settings.on_failure == "recompute" else 0
    if node.half.borrower.num_recomputing > most:
        raise InvariantViolation(f"{node.half.borrower.num_recomputing} tokens are recomputed")


def _audit_claims(node: "SimNode") -> None:
    """Nobody is asked what it can't know; what has failed is cancelled (T20); with too much of the
    pool in quarantine a node isn't ready (T17).
    """
    half, settings = node.half, node.cluster.settings
    for claim in half.borrower.open_claims:
        version = half.borrower.versions.get(claim.node, VERSION)
        knows = not isinstance(claim.source, ByTransfer) or version >= since(Stream)
        if claim.machine.state is _C.ASKING and not knows and not claim.number:
            raise InvariantViolation(f"{claim.node} is asked for {claim.name} in words of later")
        pull = claim.pull
        going_on = set() if pull is None else pull.parts - pull.ended - node.cancelled
        if pull is not None and pull.machine.state is _P.FAILING and going_on:
            raise InvariantViolation(f"T20: {going_on} go on, and their pull has failed")
    most = settings.quarantine_share * node.lending.pool_blocks
    if node.manager.ledger().quarantine > most and half.is_ready:
        raise InvariantViolation("T17: too much is in quarantine, and it says that it is ready")


def _audit_shares(node: "SimNode") -> None:
    """What others may take of us has bounds: leases (T10, T13), questions (T14), verdicts (T4)."""
    settings, lender = node.cluster.settings, node.half.lender
    leases, lending = lender.leases.values(), node.lending
    if sum(len(lease.block_ids) for lease in leases) > lending.pool_blocks - lending.longest_blocks:
        raise InvariantViolation("T10: leases leave no room for a longest sequence")
    by_hash: Counter[NodeId] = Counter()
    for lease in leases:
        if lease.number is not None and lease.reader is not None:
            by_hash[lease.reader] += len(lease.block_ids)
    shares = [
        ("T13", by_hash, int(settings.soft_share * lending.pool_blocks)),
        ("T14", lender.transfers.num_parked, settings.max_parked_per_peer),
        ("T14", {"": lender.transfers.num_parked.total()}, settings.max_parked),
        *(("T4", w.half.server.num_kept, settings.max_verdicts_per_peer) for w in node.workers),
    ]
    for rule, taken, most in shares:
        if max(taken.values(), default=0) > most:
            raise InvariantViolation(f"{rule}: {taken}, {most} at most")


def _audit_duties(node: "SimNode") -> None:
    """Whoever has left a duty has nothing of it, and begins nothing; the host knows."""
    half = node.half
    for duty in (Role.PREFILL, Role.DECODE):
        if half.has_left(duty) != (duty in node.left):
            raise InvariantViolation(f"it has left {node.left}, as far as its host knows")
    if half.has_left(Role.PREFILL) and (half.lender.leases or half.lender.transfers):
        raise InvariantViolation(f"{len(half.lender.leases)} leases of one that doesn't lend")
    if half.has_left(Role.DECODE) and half.borrower.num_elsewhere:
        raise InvariantViolation(f"{half.borrower.num_elsewhere} pulls of one that doesn't read")


def _audit_contacts(node: "SimNode") -> None:
    """What peers can be asked is what they said; of whom is refused our side hears."""
    half = node.half
    half.contacts.check()
    if half.borrower.versions != half.contacts.versions:
        raise InvariantViolation(
            f"{half.borrower.versions} is spoken, not {half.contacts.versions}"
        )
    for peer in half.contacts.refused:
        if peer not in node.refused:
            raise InvariantViolation(f"nobody here has heard that {peer} is refused")
        theirs = {c.machine.state for c in half.borrower.open_claims if c.node == peer}
        if theirs - {_C.ORPHANED}:
            raise InvariantViolation(f"something is wanted of {peer}, which is refused")
    for worker in node.workers:
        worker.half.contacts.check()
        refused = worker.half.contacts.refused
        for name, (address, state) in worker.half.fetcher.parts.items():
            if address in refused and state is not part.State.STOPPING:
                raise InvariantViolation(f"{worker.name} wants {name}, and {address} is refused")


def _audit_contents(node: "SimNode") -> None:
    """Every block that can be found, and whose writing step is over, has the right cells (I2)."""
    pool = node.manager.block_pool
    for block in pool.blocks[1:]:
        if block.block_hash is None or not pool.is_settled(block):
            continue
        group = node.geometry.groups[block.group_id]
        expected = node.cluster.content_of(block.block_hash, block.group_id, group.block_size)
        if expected is None:
            continue
        for memory in [worker.memory for worker in node.workers]:
            for head in memory.heads:
                cells = memory.cells(block.block_id, head)
                good = expected[head]
                is_state = group.kind == "state"
                if not (cells[0] == good[-1] if is_state else cells[: len(good)] == good):
                    raise InvariantViolation(
                        f"block {block.block_id} of group {block.group_id} is published with "
                        f"{cells}, right is {good}"
                    )


def audit_rest(node: "SimNode") -> str:
    """What is left that should be gone; empty: nothing."""
    left = []
    ledger = node.manager.ledger()
    if ledger.free != node.manager.config.num_blocks - 1:
        left.append(str(ledger))
    if not node.scheduler.idle:
        left.append(f"sequences {list(node.scheduler.roster.sequences)}")
    if node.half.lender.leases:
        left.append(f"{len(node.half.lender.leases)} leases")
    if node.half.lender.transfers:
        left.append(f"{len(node.half.lender.transfers)} questions about transfers")
    if node.half.contacts.num_waiting:
        left.append(f"{node.half.contacts.num_waiting} messages that wait for a hello")
    if node.half.borrower.num_open:
        left.append(f"{node.half.borrower.num_open} claims or pulls")
    for worker in node.workers:
        half = worker.half
        if half.server.num_open or any(half.server.granted_blocks()):
            left.append(f"{worker.name}: {half.server.num_open} open pulls, or grants")
        if half.fetcher.num_open:
            left.append(f"{worker.name}: {half.fetcher.num_open} parts")
    return "; ".join(left)
