"""A scheduler of vLLM's shape: what it asks of a connector, and in which order.

Owns:   requests, their blocks, their queues.
Knows nothing of: kvdist's scheduler and block manager; what is behind the connector.
Source: vllm/v1/core/sched/scheduler.py (0.32): block owners first, loads are not preempted,
        blocks are held until `finished_sending` and `finished_recving`, loads fail by blocks where
        there is one group, else by request.

Only what concerns connectors is like vLLM's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvdist.connector.geometry import Geometry
from kvdist.ids import BlockId
from tests.other_host.blocks import Blocks
from tests.other_host.connector import Ended, Metadata, SchedulerSide
from tests.other_host.requests import Request, RequestStatus as Status, block_hashes


@dataclass
class SchedulerOutput:
    #: Request, its tables, its first token to compute, and how many.
    scheduled: list[tuple[Request, list[list[BlockId]], int, int]]
    preempted_req_ids: set[str]
    kv_connector_metadata: Metadata


class Scheduler:
    def __init__(
        self,
        geometry: Geometry,
        blocks: Blocks,
        connector: SchedulerSide,
        *,
        cached: bool,
        fails: bool,
        budget: int,
    ) -> None:
        self.geometry, self.blocks, self.connector = geometry, blocks, connector
        self._size = geometry.groups[0].block_size
        self._cached = cached and geometry.resumes_anywhere and len(geometry.groups) == 1
        #: `kv_load_failure_policy`: fail, or recompute.
        self._fails = fails
        self._budget = budget
        #: All that own blocks or wait; the finished too, while their blocks are held.
        self.requests: dict[str, Request] = {}
        self.tables: dict[str, list[list[BlockId]]] = {}
        self.waiting: list[Request] = []
        self.kv_holding_waiting: list[Request] = []
        self.running: list[Request] = []
        self.finished_recving_kv_req_ids: set[str] = set()
        self.failed_recving_kv_req_ids: set[str] = set()
        #: Called with a request and its `kv_transfer_params`.
        self.on_finished: Callable[[Request, object], None] = lambda request, params: None
        self.counts: Counter[str] = Counter()

    def add_request(self, request: Request) -> None:
        self.connector.on_new_request(request)
        self.requests[request.request_id] = request
        self.tables[request.request_id] = [[] for _ in self.geometry.groups]
        self.waiting.append(request)

    # -- a step is planned ---------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        scheduled: list[tuple[Request, list[list[BlockId]], int, int]] = []
        preempted: set[str] = set()
        budget = self._budget
        for request in list(self.running):
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            while request in self.running and not self._extend(request, count):
                if self.connector.has_pending_block_frees():
                    self.counts["waits for frees"] += 1
                    break
                preempted.add(self._preempt(self.running[-1]))
            else:
                if request in self.running and count:
                    budget -= count
                    scheduled.append(self._planned(request, count))
        if not preempted:
            for queue in (self.kv_holding_waiting, self.waiting):
                if not self._scan(queue, scheduled, budget):
                    break
        scheduled = [entry for entry in scheduled if entry[0].request_id not in preempted]
        return SchedulerOutput(scheduled, preempted, self.connector.build_connector_meta())

    def _planned(
        self, request: Request, count: int
    ) -> tuple[Request, list[list[BlockId]], int, int]:
        first = request.num_computed_tokens
        request.num_computed_tokens += count
        return request, self.tables[request.request_id], first, count

    def _scan(
        self,
        queue: list[Request],
        scheduled: list[tuple[Request, list[list[BlockId]], int, int]],
        budget: int,
    ) -> bool:
        for request in list(queue):
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                if request.request_id not in self.finished_recving_kv_req_ids:
                    continue
                self._update_waiting_for_remote_kv(request)
                if request not in queue:
                    continue
            if not request.num_computed_tokens:
                loads = self._try_to_load(request)
                if loads is None:
                    continue  # asked again later
                if not loads:
                    return False
                if request.status is Status.WAITING_FOR_REMOTE_KVS:
                    continue
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            if not count:
                return False
            if not self._extend(request, count):
                self._drop_hit(request)
                return False
            budget -= count
            self.connector.update_state_after_alloc(request, self.tables[request.request_id], 0)
            queue.remove(request)
            request.status = Status.RUNNING
            self.running.append(request)
            scheduled.append(self._planned(request, count))
        return True

    def _try_to_load(self, request: Request) -> bool | None:
        """None: ask again; False: no room. True: it may run, or it is loading."""
        hit = self._local_hit(request)
        num_local = len(hit) * self._size
        answers = [self.connector.get_num_new_matched_tokens(request, num_local) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2], "it changes nothing"
        num_external, is_async = answers[0]
        assert not is_async or num_external, "nothing takes no time"
        if num_external is None:
            self.counts["asked again later"] += 1
            return None
        if num_external and not self._may_load(num_local, num_external):
            self.counts["no room to load"] += 1
            return False
        self.blocks.use(hit)
        self.tables[request.request_id][0] += hit
        request.num_computed_tokens = num_local + num_external
        if not num_external:
            return True
        resume = num_local + num_external
        for group, table in zip(self.geometry.groups, self.tables[request.request_id], strict=True):
            gone = group.first_needed(resume) // group.block_size
            table += [BlockId(0)] * (gone - len(table))
            table += self.blocks.take(-(-resume // group.block_size) - len(table))
        tables = self.tables[request.request_id]
        self.connector.update_state_after_alloc(request, tables, num_external)
        request.status = Status.WAITING_FOR_REMOTE_KVS
        self.waiting.remove(request)
        self.kv_holding_waiting.append(request)
        return True

    def _may_load(self, num_local: int, num_external: int) -> bool:
        """With room for what those who were admitted still need to begin to decode."""
        needed = self._needed(num_local + num_external + 1)
        for request in self.kv_holding_waiting + self.running:
            owned = sum(map(len, self.tables[request.request_id]))
            needed += max(0, self._needed(request.num_tokens) - owned)
        return needed <= self.blocks.num_free

    def _needed(self, num_tokens: int) -> int:
        return sum(-(-num_tokens // group.block_size) for group in self.geometry.groups)

    def _local_hit(self, request: Request) -> list[BlockId]:
        if not self._cached:
            return []
        hashes = block_hashes(request, self._size)[: (request.num_tokens - 1) // self._size]
        return self.blocks.hit(hashes)

    def _drop_hit(self, request: Request) -> None:
        """It found no room beyond its local hit, and holds nothing while it waits."""
        if request in self.waiting:
            self._free_blocks(request)
            request.num_computed_tokens = 0

    def _update_waiting_for_remote_kv(self, request: Request) -> None:
        name = request.request_id
        self.finished_recving_kv_req_ids.remove(name)
        failed = name in self.failed_recving_kv_req_ids
        self.failed_recving_kv_req_ids.discard(name)
        request.status = Status.WAITING
        if failed and self._fails:
            self.finish_requests(name, Status.FINISHED_ERROR)
        elif failed and not request.num_computed_tokens:
            self.counts["loads that failed"] += 1
            self._free_blocks(request)
            self._wait_as_new(request)
        else:
            self.counts["loads that failed"] += failed
            self.counts["loads"] += not failed
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            self._cache_blocks(request)

    def _wait_as_new(self, request: Request) -> None:
        if request in self.kv_holding_waiting:
            self.kv_holding_waiting.remove(request)
        self.waiting.insert(0, request)

    def _extend(self, request: Request, count: int) -> bool:
        tables = self.tables[request.request_id]
        slots = request.num_computed_tokens + count
        missing = [
            max(0, -(-slots // group.block_size) - len(table))
            for group, table in zip(self.geometry.groups, tables, strict=True)
        ]
        if sum(missing) > self.blocks.num_free:
            return False
        for table, more in zip(tables, missing, strict=True):
            table += self.blocks.take(more)
        return True

    def _preempt(self, request: Request) -> str:
        self.running.remove(request)
        self._free_blocks(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = Status.PREEMPTED
        self.waiting.insert(0, request)
        self.counts["preemptions"] += 1
        return request.request_id

    def preempt_all(self) -> None:
        """As a reset of the prefix cache does: all that run, and owners whose load is over."""
        for request in list(self.running):
            self._preempt(request)
        for request in list(self.kv_holding_waiting):
            if request.status is Status.WAITING:
                self.kv_holding_waiting.remove(request)
                self.running.append(request)
                self._preempt(request)

    # -- a step is over ------------------------------------------------------------------------

    def update_from_output(
        self,
        output: SchedulerOutput,
        sampled: dict[str, int],
        ended: Ended,
        said: Sequence[tuple[object, object]],
    ) -> None:
        self._handle_invalid_blocks(ended.invalid_block_ids)
        self.failed_recving_kv_req_ids |= ended.failed_recving
        for name in ended.failed_recving:
            if (request := self.requests.get(name)) is not None:
                request.num_computed_tokens = 0
        for request, _, _, _ in output.scheduled:
            if request.status is not Status.RUNNING:
                continue  # it was aborted meanwhile
            self._cache_blocks(request)
            if request.request_id in sampled:
                request.output_token_ids.append(sampled[request.request_id])
                if len(request.output_token_ids) >= request.max_tokens:
                    self.finish_requests(request.request_id, Status.FINISHED_LENGTH_CAPPED)
        self.connector.update_connector_output(said)  # type: ignore[arg-type]
        for name in ended.finished_recving:
            request = self.requests[name]
            if request.status.is_finished:
                self._forget(request)
            else:
                assert request.status is Status.WAITING_FOR_REMOTE_KVS
                self.finished_recving_kv_req_ids.add(name)
        for name in ended.finished_sending:
            request = self.requests[name]
            assert request.status.is_finished, "only finished ones are held"
            self._forget(request)

    def _handle_invalid_blocks(self, invalid: set[BlockId]) -> None:
        """One group: what is before the first of them is good."""
        for request in self.kv_holding_waiting:
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                table = self.tables[request.request_id][0]
                bad = [index for index, block in enumerate(table) if block in invalid]
                if bad:
                    request.num_computed_tokens = bad[0] * self._size
                    self.failed_recving_kv_req_ids.add(request.request_id)

    def _cache_blocks(self, request: Request) -> None:
        if self._cached:
            whole = request.num_computed_tokens // self._size
            hashes = block_hashes(request, self._size)[:whole]
            self.blocks.cache(self.tables[request.request_id][0][:whole], hashes)

    # -- the end of a request ------------------------------------------------------------------

    def finish_requests(self, name: str, status: Status) -> None:
        """Also an abort; one of a request that is finished and held is ignored."""
        request = self.requests.get(name)
        if request is None or request.status.is_finished:
            return
        is_loading = request.status is Status.WAITING_FOR_REMOTE_KVS
        delay = is_loading and name not in self.finished_recving_kv_req_ids
        request.status = status
        for queue in (self.running, self.waiting, self.kv_holding_waiting):
            if request in queue:
                queue.remove(request)
        self.finished_recving_kv_req_ids.discard(name)
        self.failed_recving_kv_req_ids.discard(name)
        held, params = self.connector.request_finished_all_groups(request, self.tables[name])
        if not (delay or held):
            self._forget(request)
        self.on_finished(request, params)

    def _forget(self, request: Request) -> None:
        del self.requests[request.request_id]
        self._free_blocks(request)
        del self.tables[request.request_id]

    def _free_blocks(self, request: Request) -> None:
        for table in self.tables[request.request_id]:
            self.blocks.free(reversed(table))
            table.clear()
