"""The life of ten blocks, told in the seven moments of the document's walk-through.

Blocks of four tokens, letters as tokens, three requests and a fourth that brings pressure. The
numbers of blocks are the document's, 0 to 9. Ours are one higher, because block 0 of a pool is the
null block, so every number is shifted by one before it is printed. Run it: make demo
"""

from collections.abc import Sequence

from kvdist.cache import BlockHasher, FullAttentionSpec, KVCacheConfig, KVCacheManager, Request
from kvdist.ids import BlockHash
from kvdist.trace.line import step_line

config = KVCacheConfig.single(FullAttentionSpec(block_size=4), num_blocks=1 + 10)
manager = KVCacheManager(config)
hasher = BlockHasher(config.hash_block_size)

live: list[str] = []
#: What each key of the hash map stands for, in letters.
prefixes: dict[BlockHash, str] = {}


def shifted(block_ids: Sequence[int]) -> list[int]:
    """Our block ids as the document counts them."""
    return [block_id - 1 for block_id in block_ids]


def in_short(letters: str) -> str:
    """Letters as runs: `ABCDwx` is `A-D w-x`."""
    runs: list[str] = []
    for letter in letters:
        if runs and ord(letter) == ord(runs[-1][-1]) + 1:
            runs[-1] = f"{runs[-1][0]}-{letter}"
        else:
            runs.append(letter)
    return " ".join(runs)


def step(number: int, request: Request, num_tokens: int) -> None:
    """One step, as a scheduler plans it: `num_tokens` more are computed, unless they are hit."""
    hit = None if request.request_id in live else manager.get_computed_blocks(request)
    num_hit, hit_blocks = (hit.num_tokens, hit.blocks.blocks[0]) if hit else (0, ())
    new = manager.allocate_slots(request, num_tokens - num_hit, hit)
    if new is not None:
        request.num_computed_tokens += num_tokens
        if hit is not None:
            live.append(request.request_id)
    letters = "".join(map(chr, request.all_token_ids))
    for i, key in enumerate(request.block_hashes, 1):
        prefixes[key] = in_short(letters[: i * config.hash_block_size])
    line = step_line(
        number,
        request.request_id,
        hit_tokens=num_hit,
        scheduled=0 if new is None else num_tokens - num_hit,
        owned=[shifted(ids) for ids in manager.get_block_ids(request.request_id)],
        new=[[]] if new is None else [shifted(ids) for ids in new.get_block_ids()],
        free=manager.block_pool.get_num_free_blocks(),
        ref_hit=[block.ref_cnt for block in hit_blocks],
    )
    print(" ", line)


def show() -> None:
    """Everything that the block manager knows, with the document's numbers."""
    pool = manager.block_pool
    keys = [f"{prefixes[key]} -> {block.block_id - 1}" for _, key, block in pool.cached_blocks()]
    tables = [f"{name}: {shifted(manager.get_block_ids(name)[0])}" for name in live]
    counts = [f"{b.block_id - 1} -> {b.ref_cnt}" for b in pool.blocks[1:] if b.ref_cnt]
    print("  free queue:", shifted([block.block_id for block in pool.free_block_queue]))
    print("  hash map:  ", "{" + ", ".join(keys) + "}")
    print("  requests:  ", "{" + ", ".join(tables) + "}")
    print("  ref_cnt:   ", ", ".join(counts) or "all 0")
    manager.check()


def request_of(name: str, letters: str) -> Request:
    """A request whose prompt is `letters`."""
    return Request(name, list(map(ord, letters)), hasher)


def main() -> None:
    """Tell it."""
    print("Block numbers are the document's: ours less one, since our block 0 is the null block.")
    print("\ntime 0: the pool is new")
    show()

    print("\ntime 1: R0 comes with A-O, 15 tokens")
    r0 = request_of("R0", "ABCDEFGHIJKLMNO")
    step(1, r0, 15)
    show()

    print("\ntime 2: P fills block 3, Q needs another")
    for number, letter in ((2, "P"), (3, "Q")):
        r0.append_output_token_ids(ord(letter))
        step(number, r0, 1)
    show()

    print("\ntime 3: R0 is done: tail first, hashed blocks last in line and still findable")
    manager.free(r0)
    live.remove("R0")
    show()

    print("\ntime 4: R1 shares A-L and goes on differently")
    step(4, request_of("R1", "ABCDEFGHIJKLwxyz"), 16)
    show()

    print("\ntime 5: R2 needs 7 blocks, 6 are free: refused, and nothing has changed")
    step(5, request_of("R2", "abcdefghijklmnopqrstuvwxy"), 25)
    show()

    print("\ntime 6: R3 needs 6: block 3 changes hands, A-P is gone, shorter prefixes stay")
    step(6, request_of("R3", "abcdefghijklmnopqrstu"), 21)
    show()


if __name__ == "__main__":
    main()
