"""The connector's halves behind vLLM's contract: what a plugin would do, on both sides.

Owns:   what is to be told to workers, and what workers are to say again.
Source: `KVConnectorBase_V1` (vllm/distributed/kv_transfer/kv_connector/v1/base.py, 0.32).

The half in the scheduler's process decides what has ended; vLLM hears of it from its workers. So
each step's metadata carries what has ended, and every worker says it again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvdist.connector.effects import (
    DutyOver,
    PeerRefused,
    SendToNode,
    SendToWorker,
    TicketReady,
    WorkerLost,
)
from kvdist.connector.geometry import Geometry
from kvdist.connector.host import BlocksReturned, Loaded, LoadFailed, LoadQuiet
from kvdist.connector.local import FromWorker, ToWorker
from kvdist.connector.messages import NodeMessage
from kvdist.connector.params import ByTransfer, Lend, read_params, write_params
from kvdist.connector.scheduler_half import SchedulerHalf
from kvdist.errors import InvalidRequest
from kvdist.ids import BlockHash, BlockId, Incarnation, NodeId, Rank
from tests.other_host.requests import Request, RequestStatus, Seen


@dataclass
class Ended:
    """Of one step: what vLLM hears from its workers."""

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    #: Of those: whose bytes are worthless; where there are several groups.
    failed_recving: set[str] = field(default_factory=set)
    #: The same where there is one group.
    invalid_block_ids: set[BlockId] = field(default_factory=set)


@dataclass
class Metadata:
    """One step's, from the scheduler's side to all workers."""

    to_workers: list[tuple[Rank, ToWorker]]
    ended: Ended


class SchedulerSide:
    """`send`: a message to another node. Between its calls the half hears nothing."""

    def __init__(
        self,
        node: NodeId,
        half: SchedulerHalf,
        geometry: Geometry,
        hash_block_size: int | None,
        clock: Callable[[], float],
        send: Callable[[SendToNode], None],
    ) -> None:
        self._node, self._half, self._geometry = node, half, geometry
        self._hash_block_size, self._clock, self._send = hash_block_size, clock, send
        self._seen: dict[str, Seen] = {}
        self._num_local: dict[str, int] = {}
        #: What is being loaded, until it is published: a step or two after the half has said so.
        self._loading: dict[str, BlockHash] = {}
        self._to_workers: list[tuple[Rank, ToWorker]] = []
        self._ended = Ended()
        self._held: set[str] = set()
        #: Messages from other nodes, until the next step.
        self.inbox: list[tuple[NodeId, Incarnation, NodeMessage]] = []
        self.num_rejected = 0

    # -- about requests ------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """A prefill for a peer is cut by a token where all groups have to resume at its end."""
        params = request.kv_transfer_params
        seen = self._seen[request.request_id] = Seen(request, self._hash_block_size)
        try:
            if isinstance(read_params(params), Lend):
                # The answer leaves before all workers have acknowledged: it names a transfer.
                params = write_params(Lend(request.request_id))
                if not self._geometry.resumes_anywhere:
                    request.prompt_token_ids = request.prompt_token_ids[:-1]
            self._half.clock(self._clock())
            self._half.arrived(seen, params, prefill_only=True)
        except InvalidRequest:
            self.num_rejected += 1

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        match = self._half.match(self._seen[request.request_id], num_computed_tokens)
        content = self._content(request, num_computed_tokens + match.num_tokens)
        others = {self._loading[name] for name in self._loading if name != request.request_id}
        if match.pending or (match.num_tokens and content in others):
            return None, False
        self._num_local[request.request_id] = num_computed_tokens
        return match.num_tokens, match.num_tokens > 0

    def _content(self, request: Request, num_tokens: int) -> BlockHash | None:
        """What a load up to there would publish."""
        hashes = self._seen[request.request_id].block_hashes
        whole = num_tokens // (self._hash_block_size or 1)
        return hashes[whole - 1] if 0 < whole <= len(hashes) else None

    def update_state_after_alloc(
        self, request: Request, block_ids: Sequence[Sequence[BlockId]], num_external_tokens: int
    ) -> None:
        """Without external tokens also when what was loaded has just been published."""
        num_local = self._num_local.get(request.request_id, 0)
        content = self._content(request, num_local + num_external_tokens)
        if num_external_tokens and content is not None:
            self._loading[request.request_id] = content
        else:
            self._loading.pop(request.request_id, None)
        self._half.admitted(
            self._seen[request.request_id], block_ids, num_local, num_external_tokens
        )

    def request_finished_all_groups(
        self, request: Request, block_ids: Sequence[Sequence[BlockId]]
    ) -> tuple[bool, dict[str, Any] | None]:
        name, status = request.request_id, request.status
        usable = status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
        self._half.clock(self._clock())
        lent = self._half.finished(
            self._seen.pop(name), block_ids, request.num_computed_tokens, is_usable=usable
        )
        self._num_local.pop(name, None)
        self._loading.pop(name, None)
        if not lent:
            return False, None
        self._held.add(name)
        return True, write_params(ByTransfer(self._node, name))

    # -- once a step ---------------------------------------------------------------------------

    def build_connector_meta(self) -> Metadata:
        """What has arrived goes first, then what is due (T22)."""
        self._half.clock(self._clock())
        inbox, self.inbox = self.inbox, []
        for peer, run, message in inbox:
            self._half.node_seen(peer, run)
            self._half.from_node(peer, message)
        self._half.tick()
        self._carry_out()
        metadata = Metadata(self._to_workers, self._ended)
        self._to_workers, self._ended = [], Ended()
        return metadata

    def update_connector_output(self, said: Sequence[tuple[Rank, FromWorker]]) -> None:
        self._half.clock(self._clock())
        for rank, message in said:
            self._half.from_worker(rank, message)
        self._carry_out()

    def has_pending_push_work(self) -> bool:
        return not self._half.is_idle or bool(self.inbox)

    def has_pending_block_frees(self) -> bool:
        return self._half.num_coming_back > 0

    def reset_cache(self) -> bool:
        self._half.clock(self._clock())
        self._half.take_back()
        return self._half.num_coming_back == 0

    def _carry_out(self) -> None:
        for effect in self._half.take_effects():
            match effect:
                case SendToNode():
                    self._send(effect)
                case PeerRefused() | DutyOver():
                    pass  # for the log
                case SendToWorker(rank, order):
                    self._to_workers.append((rank, order))
                case Loaded(name):
                    self._ended.finished_recving.add(name)
                case LoadQuiet(name, block_ids):
                    self._ended.finished_recving.add(name)
                    if len(self._geometry.groups) > 1:
                        self._ended.failed_recving.add(name)
                    else:
                        self._ended.invalid_block_ids.update(block_ids)
                case BlocksReturned(name, _):
                    assert name is not None, "nothing is lent by hash here"
                    self._held.remove(name)
                    self._ended.finished_sending.add(name)
                case LoadFailed() | TicketReady():
                    pass  # told when it is quiet; told by its transfer
                case WorkerLost(rank):
                    raise AssertionError(f"worker {rank} doesn't answer")
