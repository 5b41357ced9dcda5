"""Bad input: an error that says who is to blame, and nothing has changed.

Every case asks for a typed error of `kvdist.errors` with blame "caller", and compares everything
that can be seen of the manager before and after. `nonsense` stands for what a caller without a type
checker may pass.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kvdist.cache import (
    BlockHasher,
    BlockPool,
    ExtraKeys,
    FullAttentionSpec,
    HoldKind,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    LoRAKey,
    MambaSpec,
    MultiModalItem,
    PromptEmbeds,
    Request,
)
from kvdist.errors import (
    ConfigError,
    DoubleFree,
    ForeignBlock,
    IllegalAllocation,
    InvalidRequest,
    KvdistError,
    LocalMisuse,
    StaleHit,
    UnknownRequest,
    UnknownStep,
)
from tests.make import (
    GROUP,
    Node,
    chunked,
    cross,
    full,
    make_config,
    make_pool,
    mamba,
    tokens_of,
    window,
)
from tests.unit.snapshot import unchanged

NOT_NUMBERS: list[Any] = [1.0, 1.5, math.nan, math.inf, True, None, "1"]
NEGATIVE: list[Any] = [-1, -(10**30)]
ABSURD: list[Any] = [1 << 40, 10**30]


def named(values: list[Any]) -> pytest.MarkDecorator:
    """The cases of a test, by their text."""
    return pytest.mark.parametrize("nonsense", values, ids=[repr(value)[:12] for value in values])


def each(*calls: Callable[[], object]) -> tuple[Callable[[], object], ...]:
    return calls


@contextmanager
def refused(
    error: type[KvdistError], *things: KVCacheManager | BlockPool | Request
) -> Iterator[None]:
    """What is inside raises `error`, to the caller's blame, and changes none of `things`."""
    with unchanged(*things), pytest.raises(error) as caught:
        yield
    assert caught.value.blame == "caller"
    assert str(caught.value)


@pytest.fixture
def node() -> Node:
    """One request runs on blocks 1 to 3, another has left 4 and 5 behind, one is held."""
    node = Node(enable_events=True)
    node.start("runs", "ABCDEFGHIJ")
    node.finish(node.start("gone", "0123456789"))
    node.manager.hold_blocks([9], HoldKind.LEASE)
    return node


@pytest.fixture
def running(node: Node) -> Request:
    return node.manager.live_requests["runs"].request


# -- settings ------------------------------------------------------------------------------------


@named(NOT_NUMBERS + NEGATIVE + ABSURD)
@pytest.mark.parametrize(
    "name", ["num_blocks", "max_model_len", "max_in_flight_tokens", "hash_block_size"]
)
def test_numbers_of_a_config(name: str, nonsense: Any) -> None:
    with refused(ConfigError):
        make_config(full(1), **{name: nonsense})


@named([value for value in NOT_NUMBERS + NEGATIVE + ABSURD if value is not None])
@pytest.mark.parametrize("caching", [True, False])
def test_retention_interval(caching: bool, nonsense: Any) -> None:
    with refused(ConfigError):
        make_config(full(1), retention_interval=nonsense, enable_caching=caching)


@named(["0.1", None, b"0.1", [0.1], -0.1, 1.0, 7, True, math.nan, math.inf])
def test_watermark(nonsense: Any) -> None:
    with refused(ConfigError):
        make_config(watermark=nonsense)


@named(NOT_NUMBERS + NEGATIVE + ABSURD + [0])
@pytest.mark.parametrize("kind", [full, mamba, cross])
def test_block_sizes(kind: Callable[[Any], object], nonsense: Any) -> None:
    with refused(ConfigError):
        kind(nonsense)


@named(NOT_NUMBERS + NEGATIVE + ABSURD + [0])
@pytest.mark.parametrize("kind", [window, chunked])
def test_windows_and_chunks(kind: Callable[[Any], object], nonsense: Any) -> None:
    with refused(ConfigError):
        kind(nonsense)


@named(NOT_NUMBERS + NEGATIVE + ABSURD)
def test_scratch_states(nonsense: Any) -> None:
    with refused(ConfigError):
        mamba(scratch=nonsense)


@named(NOT_NUMBERS + NEGATIVE + [10**30])
def test_page_sizes(nonsense: Any) -> None:
    with refused(ConfigError):
        FullAttentionSpec(block_size=4, page_size_bytes=nonsense)


@named(["all", None, 1, ["align"]])
def test_mamba_cache_mode(nonsense: Any) -> None:
    with refused(ConfigError):
        MambaSpec(block_size=4, mamba_cache_mode=nonsense)


@named([None, (), 5, "full", (full(),), (None,), (KVCacheGroupSpec(None),)])  # type: ignore[arg-type]
def test_groups(nonsense: Any) -> None:
    with refused(ConfigError):
        KVCacheConfig(num_blocks=11, kv_cache_groups=nonsense)


def test_a_config_of_one_group_without_a_spec() -> None:
    with refused(ConfigError):
        KVCacheConfig.single(None, num_blocks=11)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: make_config(full(), cross()), id="cross attention with caching"),
        pytest.param(lambda: make_config(full(4), hash_block_size=3), id="hash size"),
        pytest.param(lambda: make_config(full(4), window(8, 6)), id="hash size by default"),
        pytest.param(lambda: make_config(full(8), retention_interval=12), id="retention"),
        pytest.param(lambda: make_config(mamba(mode="none")), id="states without boundaries"),
        pytest.param(lambda: make_config(full(8), chunked(8)), id="chunks of another size"),
        pytest.param(lambda: make_config(chunked(8), use_eagle=True), id="chunks with a draft"),
    ],
)
def test_settings_that_contradict_each_other(build: Callable[[], object]) -> None:
    with refused(ConfigError):
        build()


@named(NOT_NUMBERS + NEGATIVE + ABSURD + [0])
def test_a_hasher_s_block_size(nonsense: Any) -> None:
    with refused(ConfigError):
        BlockHasher(nonsense)


@named([None, 1, "", "SHA256", b"sha256", ["sha256"]])
def test_a_hasher_s_algorithm(nonsense: Any) -> None:
    with refused(ConfigError):
        BlockHasher(4, nonsense)


@named(NOT_NUMBERS + NEGATIVE + [0, 1])
def test_a_pool_s_size(nonsense: Any) -> None:
    with refused(ConfigError):
        BlockPool(nonsense, num_groups=1, hash_block_size=4)


# -- requests ------------------------------------------------------------------------------------

BAD_TOKENS: list[Any] = [
    [-1],
    [2**32 - 1],
    [2**32],
    [2**40],
    [1, 2, 3, -1],
    [1.0],
    [1.5],
    [None],
    ["1"],
    [b"1"],
    [[1]],
    "1234",
    b"1234",
    bytearray(b"1234"),
]


@named([*BAD_TOKENS, [], (), None, 7, 1.5])
@pytest.mark.parametrize("hashed", [True, False])
def test_prompts(nonsense: Any, hashed: bool) -> None:
    with refused(InvalidRequest):
        Request("a", nonsense, BlockHasher(4) if hashed else None)


@named([*BAD_TOKENS, -1, 2**32 - 1, 2**40, 1.0, None, True])
@pytest.mark.parametrize("hashed", [True, False])
def test_output_tokens(nonsense: Any, hashed: bool) -> None:
    request = Request("a", [1, 2, 3], BlockHasher(4) if hashed else None)
    with refused(InvalidRequest, request):
        request.append_output_token_ids(nonsense)


def test_a_running_request_refuses_a_token_and_goes_on(node: Node, running: Request) -> None:
    with refused(InvalidRequest, node.manager, running):
        running.append_output_token_ids([75, 76, -1])
    node.say(running, "KL")
    assert node.cached == [1, 2, 3, 4, 5]


@named([None, "", 7, b"a", ["a"], ("a",)])
def test_request_ids(nonsense: Any) -> None:
    with refused(InvalidRequest):
        Request(nonsense, [1, 2])


@named(["x" * (1 << 20), "\ud800", 7, b"salt", ["salt"]])
def test_texts_of_extra_keys(nonsense: Any) -> None:
    for build in each(
        lambda: ExtraKeys(cache_salt=nonsense),
        lambda: LoRAKey(nonsense),
        lambda: LoRAKey("name", nonsense),
        lambda: MultiModalItem(nonsense, 0, 1),
    ):
        with refused(InvalidRequest):
            build()


@named(NOT_NUMBERS + NEGATIVE)
def test_places_of_items(nonsense: Any) -> None:
    with refused(InvalidRequest):
        MultiModalItem("a", nonsense, 1)
    with refused(InvalidRequest):
        MultiModalItem("a", 0, nonsense)


@named(NOT_NUMBERS + NEGATIVE + [0])
def test_rows_of_embeddings(nonsense: Any) -> None:
    with refused(InvalidRequest):
        PromptEmbeds(b"abcd", nonsense)


@named([None, "abcd", 4, [1, 2, 3, 4]])
def test_embeddings_are_bytes(nonsense: Any) -> None:
    with refused(InvalidRequest):
        PromptEmbeds(nonsense, 1)


@pytest.mark.parametrize("offset", [3, 4, 10**6, 2**63, 10**30])
def test_items_past_the_prompt(offset: int) -> None:
    with refused(InvalidRequest):
        keys = ExtraKeys(mm_items=(MultiModalItem("a", offset, 2),))
        Request("a", [1, 2, 3, 4], BlockHasher(4), extra_keys=keys)


# -- allocations ---------------------------------------------------------------------------------

NUMBERS = [
    "num_lookahead_tokens",
    "num_external_computed_tokens",
    "num_encoder_tokens",
    "reserved_blocks",
]


@named(NOT_NUMBERS + NEGATIVE)
def test_new_tokens_of_a_new_request(node: Node, nonsense: Any) -> None:
    request = node.request("a", "QRSTU")
    hit = node.manager.get_computed_blocks(request)
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, nonsense, hit)


@named(NOT_NUMBERS + NEGATIVE)
def test_new_tokens_of_a_running_request(node: Node, running: Request, nonsense: Any) -> None:
    with refused(IllegalAllocation, node.manager, running):
        node.manager.allocate_slots(running, nonsense)


@named(NOT_NUMBERS + NEGATIVE)
@pytest.mark.parametrize("name", NUMBERS)
def test_other_numbers_of_a_new_request(node: Node, name: str, nonsense: Any) -> None:
    request = node.request("a", "QRSTU")
    settings: dict[str, Any] = {name: nonsense}
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 5, **settings)


@named(NOT_NUMBERS + NEGATIVE)
@pytest.mark.parametrize("name", NUMBERS)
def test_other_numbers_of_a_running_request(
    node: Node, running: Request, name: str, nonsense: Any
) -> None:
    settings: dict[str, Any] = {name: nonsense}
    with refused(IllegalAllocation, node.manager, running):
        node.manager.allocate_slots(running, 1, **settings)


@named(NEGATIVE)
@pytest.mark.parametrize("name", ["num_computed_tokens", "num_in_flight_tokens"])
def test_counts_that_a_scheduler_sets(
    node: Node, running: Request, name: str, nonsense: Any
) -> None:
    setattr(running, name, nonsense)
    try:
        with pytest.raises(LocalMisuse):
            node.manager.allocate_slots(running, 1)
    finally:
        running.num_computed_tokens, running.num_in_flight_tokens = 10, 0
    node.manager.check()
    assert node.table(running) == [1, 2, 3]


def test_computed_tokens_of_a_request_that_owns_nothing(node: Node) -> None:
    request = node.request("a", "QRSTUVWXYZ")
    request.num_computed_tokens = 8
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 2)


def test_nothing_to_do(node: Node, running: Request) -> None:
    request = node.request("a", "QRSTU")
    hit = node.manager.get_computed_blocks(request)
    for call in each(
        lambda: node.manager.allocate_slots(request, 0),
        lambda: node.manager.allocate_slots(request, 0, hit),
        lambda: node.manager.allocate_slots(running, 0),
        lambda: node.manager.allocate_slots(running, 0, num_lookahead_tokens=4),
    ):
        with refused(IllegalAllocation, node.manager, request, running):
            call()


@named(ABSURD)
@pytest.mark.parametrize("spec", [full(), window(8), chunked(8), mamba(), mamba(scratch=2)])
def test_absurd_lengths_do_not_fit(spec: FullAttentionSpec, nonsense: int) -> None:
    node = Node(spec)
    request = node.request("a", "QRSTU")
    cases: list[dict[str, Any]] = [{}, {"num_lookahead_tokens": nonsense}]
    for settings in cases:
        with unchanged(node.manager, request), suppress(IllegalAllocation):
            assert node.manager.allocate_slots(request, nonsense, **settings) is None
    with unchanged(node.manager, request):
        assert node.manager.allocate_slots(request, 5, reserved_blocks=nonsense) is None


# -- hits ----------------------------------------------------------------------------------------


def test_a_hit_of_evicted_blocks_is_stale(node: Node) -> None:
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    assert hit.num_tokens == 8
    node.manager.evict_blocks([5])
    with refused(StaleHit, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)
    again = node.manager.get_computed_blocks(request)
    assert again.num_tokens == 4
    assert node.manager.allocate_slots(request, 7, again) is not None


def test_a_hit_whose_block_was_taken_is_stale(node: Node) -> None:
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    node.start("b", range(24))
    assert node.queue == []
    with refused(StaleHit, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_a_hit_after_a_reset_is_stale() -> None:
    node = Node()
    node.finish(node.start("gone", "0123456789"))
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    node.manager.reset_prefix_cache()
    with refused(StaleHit, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_a_stale_hit_can_be_tried_again() -> None:
    assert StaleHit.retryable
    assert not IllegalAllocation.retryable


def test_a_hit_stays_good_while_others_change(node: Node) -> None:
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    node.start("b", "xyz")
    assert node.manager.allocate_slots(request, 3, hit) is not None


def test_a_hit_of_another_request(node: Node) -> None:
    hit = node.manager.get_computed_blocks(node.request("b", "0123456789x"))
    request = node.request("a", "0123456789x")
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_a_hit_of_another_request_of_the_same_name(node: Node) -> None:
    hit = node.manager.get_computed_blocks(node.request("a", "0123456789x"))
    request = node.request("a", "ZYXWVUTSRQP")
    with refused(LocalMisuse, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_a_hit_used_twice(node: Node) -> None:
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    assert node.manager.allocate_slots(request, 3, hit) is not None
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)
    request.num_computed_tokens = 11
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_an_empty_hit_used_twice_is_no_second_admission(node: Node) -> None:
    request = node.request("a", "QRSTU")
    hit = node.manager.get_computed_blocks(request)
    assert node.manager.allocate_slots(request, 5, hit) is not None
    request.num_computed_tokens = 5
    before = repr(node.manager.stats)
    assert node.manager.allocate_slots(request, 1, hit) is not None
    assert repr(node.manager.stats) == before


def test_a_hit_with_computed_tokens(node: Node) -> None:
    request = node.request("a", "0123456789x")
    hit = node.manager.get_computed_blocks(request)
    request.num_computed_tokens = 4
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_a_hit_of_another_manager(node: Node) -> None:
    other = Node()
    other.finish(other.start("gone", "0123456789"))
    request = node.request("a", "0123456789x")
    hit = other.manager.get_computed_blocks(request)
    with refused(LocalMisuse, node.manager, other.manager, request):
        node.manager.allocate_slots(request, 3, hit)


def test_external_tokens_for_a_request_that_owns_blocks(node: Node, running: Request) -> None:
    with refused(IllegalAllocation, node.manager, running):
        node.manager.allocate_slots(running, 1, num_external_computed_tokens=4)


# -- requests the manager doesn't know, or knows by another object -------------------------------


def test_publishing_for_an_unknown_request(node: Node) -> None:
    with refused(UnknownRequest, node.manager):
        node.manager.cache_blocks(node.request("nobody", "ABCD"), 4)


def test_an_unknown_request_owns_nothing_and_gives_nothing_back(node: Node) -> None:
    request = node.request("nobody", "ABCD")
    with unchanged(node.manager, request):
        node.manager.free(request)
        node.manager.remove_skipped_blocks(request, 4)
        assert node.manager.get_block_ids("nobody") == ([],)
        assert node.manager.get_blocks("nobody").blocks == ((),)


def test_freeing_twice_is_freeing_once(node: Node, running: Request) -> None:
    node.manager.free(running)
    with unchanged(node.manager, running):
        node.manager.free(running)
    with refused(UnknownRequest, node.manager):
        node.manager.cache_blocks(running, 4)


def test_two_live_requests_of_one_name(node: Node, running: Request) -> None:
    other = node.request("runs", "ABCDEFGHIJ")
    for call in each(
        lambda: node.manager.get_computed_blocks(other),
        lambda: node.manager.allocate_slots(other, 10),
        lambda: node.manager.allocate_slots(other, 1),
        lambda: node.manager.cache_blocks(other, 8),
        lambda: node.manager.remove_skipped_blocks(other, 8),
        lambda: node.manager.free(other),
    ):
        with refused(LocalMisuse, node.manager, running, other):
            call()
    node.finish(running)
    assert node.admit(other) is not None


@pytest.mark.parametrize("size", [1, 2, 8, 3])
def test_a_request_hashed_in_blocks_of_another_size(node: Node, size: int) -> None:
    request = Request("a", tokens_of("ABCDEFGHIJ"), BlockHasher(size))
    for call in each(
        lambda: node.manager.get_computed_blocks(request),
        lambda: node.manager.allocate_slots(request, 10),
    ):
        with refused(LocalMisuse, node.manager, request):
            call()


def test_a_request_that_is_not_hashed_is_served_and_never_found(node: Node) -> None:
    request = Request("a", tokens_of("ABCDEFGHIJ"))
    assert node.admit(request) is not None
    node.manager.cache_blocks(request, 8)
    assert node.cached == [1, 2, 4, 5]
    node.manager.check()
    node.finish(request)
    node.manager.check()


# -- publishing ----------------------------------------------------------------------------------


@named([*NOT_NUMBERS, *NEGATIVE, *ABSURD, 11, 12, 13])
def test_publishing_beyond_what_is_known(node: Node, running: Request, nonsense: Any) -> None:
    with refused(IllegalAllocation, node.manager, running):
        node.manager.cache_blocks(running, nonsense)


def test_publishing_beyond_the_slots(node: Node, running: Request) -> None:
    running.append_output_token_ids([1, 2, 3, 4, 5, 6])
    with refused(IllegalAllocation, node.manager, running):
        node.manager.cache_blocks(running, 16)


@named(NOT_NUMBERS + NEGATIVE)
def test_giving_back_by_hand(nonsense: Any) -> None:
    node = Node(window(5))
    request = node.start("a", "ABCDEFGHIJ")
    with refused(IllegalAllocation, node.manager, request):
        node.manager.remove_skipped_blocks(request, nonsense)


def test_giving_back_what_is_not_computed_yet() -> None:
    node = Node(window(5))
    request = node.start("a", "ABCDEFGHIJ")
    with refused(IllegalAllocation, node.manager, request):
        node.manager.remove_skipped_blocks(request, request.num_computed_tokens + 1)


def test_more_external_tokens_than_are_known(node: Node) -> None:
    request = node.request("a", "QRSTU")
    with refused(IllegalAllocation, node.manager, request):
        node.manager.allocate_slots(request, 0, num_external_computed_tokens=6)


# -- blocks --------------------------------------------------------------------------------------

NOT_BLOCKS: list[Any] = [-1, 11, 10**30, 1.0, "1", None, b"1", [1], True]


@named(NOT_BLOCKS)
def test_block_ids(node: Node, nonsense: Any) -> None:
    for call in each(
        lambda: node.manager.evict_blocks([1, nonsense]),
        lambda: node.manager.hold_blocks([1, nonsense], HoldKind.LEASE),
        lambda: node.manager.end_hold([9, nonsense], HoldKind.LEASE),
        lambda: node.manager.change_hold([9, nonsense], HoldKind.LEASE, HoldKind.PULL),
        lambda: node.manager.is_settled(nonsense),
    ):
        with refused(ForeignBlock, node.manager):
            call()


def test_blocks_of_another_pool(node: Node) -> None:
    pool = node.pool
    foreign = make_pool(11).blocks[1]
    for call in each(
        lambda: pool.free_blocks([foreign]),
        lambda: pool.hold([foreign], HoldKind.PULL),
        lambda: pool.end_hold([foreign], HoldKind.PULL),
        lambda: pool.change_hold([foreign], HoldKind.PULL, HoldKind.LEASE),
    ):
        with refused(ForeignBlock, node.manager):
            call()


@named([None, 1, "1", object()])
def test_what_is_no_block(node: Node, nonsense: Any) -> None:
    with refused(ForeignBlock, node.manager):
        node.pool.free_blocks([nonsense])
    with refused(ForeignBlock, node.manager):
        node.pool.hold([nonsense], HoldKind.PULL)


def test_freeing_more_than_was_taken() -> None:
    pool = make_pool()
    first, second = pool.get_new_blocks(2, GROUP)
    pool.free_blocks([first])
    for blocks in ([first], [second, second], [second, first], [pool.blocks[7]]):
        with refused(DoubleFree, pool):
            pool.free_blocks(blocks)


def test_a_hold_is_not_freed_as_a_request_s(node: Node) -> None:
    with refused(DoubleFree, node.manager):
        node.pool.free_blocks([node.pool.blocks[9]])


@named([*NEGATIVE, *ABSURD, 1.0, 1.5, "1", None, math.nan])
def test_taking_so_many(nonsense: Any) -> None:
    pool = make_pool()
    with refused(LocalMisuse, pool):
        pool.get_new_blocks(nonsense, GROUP)


# -- holds ---------------------------------------------------------------------------------------


def test_holds_that_end_twice(node: Node) -> None:
    node.manager.end_hold([9], HoldKind.LEASE)
    with refused(DoubleFree, node.manager):
        node.manager.end_hold([9], HoldKind.LEASE)


def test_holds_of_another_kind(node: Node) -> None:
    with refused(DoubleFree, node.manager):
        node.manager.end_hold([9], HoldKind.PULL)
    with refused(DoubleFree, node.manager):
        node.manager.change_hold([9], HoldKind.QUARANTINE, HoldKind.PULL)


@named([None, 2, 7, "LEASE", HoldKind.REQUEST, HoldKind.COPY])
def test_kinds_of_hold(node: Node, nonsense: Any) -> None:
    for call in each(
        lambda: node.manager.hold_blocks([1], nonsense),
        lambda: node.manager.end_hold([9], nonsense),
        lambda: node.manager.change_hold([9], nonsense, HoldKind.PULL),
        lambda: node.manager.change_hold([9], HoldKind.LEASE, nonsense),
    ):
        with refused(LocalMisuse, node.manager):
            call()


def test_a_copy_that_was_not_taken(node: Node) -> None:
    made = [(1, 2, GROUP)]
    with refused(LocalMisuse, node.manager):
        node.manager.release_block_copies(made)  # type: ignore[arg-type]


# -- steps ---------------------------------------------------------------------------------------


@named([-1, 0, 3, 4, 1.0, 5.5, "5", b"5", True, math.nan])
def test_steps_out_of_order(node: Node, nonsense: Any) -> None:
    node.manager.new_step_starts(4)
    with refused(UnknownStep, node.manager):
        node.manager.new_step_starts(nonsense)


@named([-1, 0, 3, 5, 6, 4.0, "4", None, True])
def test_settling_what_is_not_the_oldest_open_step(node: Node, nonsense: Any) -> None:
    node.manager.new_step_starts(4)
    node.manager.new_step_starts(5)
    with refused(UnknownStep, node.manager):
        node.manager.settle_step(nonsense)


@named([-1, 0, 3, 6, 4.0, "4", None, True])
def test_withdrawing_what_is_not_open(node: Node, nonsense: Any) -> None:
    node.manager.new_step_starts(4)
    node.manager.new_step_starts(5)
    with refused(UnknownStep, node.manager):
        node.manager.withdraw_step(nonsense)


def test_without_steps_none_can_end(node: Node) -> None:
    for call in each(
        lambda: node.manager.settle_step(1),
        lambda: node.manager.withdraw_step(1),
    ):
        with refused(UnknownStep, node.manager):
            call()
