"""The chain of block hashes (S6-S8, ADR-0003).

The vectors below are the key format. Keys travel between nodes and outlive processes, so a change
here is a change of protocol and needs a new name in the header.
"""

import hashlib
import struct
import sys

import pytest

from kvdist.cache import BlockHasher, ExtraKeys, LoRAKey, MultiModalItem, PromptEmbeds
from kvdist.cache.block_hash import ALGORITHMS, pack_tokens
from kvdist.errors import ConfigError, InvalidRequest

TOKENS = list(range(8))
NO_KEYS = ExtraKeys()
LARGEST_TOKEN = 2**32 - 2
LORA = ExtraKeys(lora=LoRAKey("name", "path"))
SALT = ExtraKeys(cache_salt="name")
BOTH = ExtraKeys(cache_salt="s", lora=LoRAKey("l"))
ITEM = ExtraKeys(mm_items=(MultiModalItem("img", 2, 4),))
EMBEDS = ExtraKeys(prompt_embeds=PromptEmbeds(bytes(range(10)), 2))


def chain(
    tokens: list[int], keys: ExtraKeys = NO_KEYS, size: int = 4, algorithm: str = "sha256"
) -> list[str]:
    return [key.hex() for key in BlockHasher(size, algorithm).start(keys).extend(tokens)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param(
            ExtraKeys(),
            [
                "f5021f45c27de8045665bde25132cd8136cf4a08c7cb1c573d1f6040c1dbdf18",
                "a9f0ed0ee6b2605ee1c8a7f5bf15ea6a26bd7bfc759705c2d62eef90e80c9773",
            ],
            id="tokens",
        ),
        pytest.param(
            LORA,
            [
                "0f96d100ef301f0250412842ba0ec6099b9114b5f2636ae1a686ad3b4c5d58dd",
                "559f514b3913a4ced25947773b4f619cc7fac10f4c4e6f43218f36c9f8092e24",
            ],
            id="adapter",
        ),
        pytest.param(
            SALT,
            [
                "fcf833d09fcfbc4b50b6879ce84a441b47cd4b078a1945cc7c41e0902d2a7851",
                "5991da75156452bfbfabbd4d00a4a6d4b6597a0726771d8abebf4c378af3ea25",
            ],
            id="salt",
        ),
        pytest.param(
            BOTH,
            [
                "4cce61776ea7ab4411d1f745968703ff8e9b9b0e98a44ed35b157123e5cc4ee3",
                "5372d47de97e4419f9f7d41f6448ae52ae01c32601313bb33d84ac4a8ea79e91",
            ],
            id="both",
        ),
        pytest.param(
            ITEM,
            [
                "ca1837270eea03253f6456cfc5c85cdb335856ebb3918baca114321f028ed81c",
                "847e637fc4d78e2ed3e53db6e281ce73d8a8271c0f83947844635d5a95015017",
            ],
            id="item",
        ),
        pytest.param(
            EMBEDS,
            [
                "4ce80403c8aa9f9c362817ff692c84f0cc04f3a82087ee45e044c6b4c7d861e7",
                "d3f6487678dd1c876818347375a5bd730d1e0b4d0a987d692ac3073b56ee3a5b",
            ],
            id="embeddings",
        ),
    ],
)
def test_known_vectors(keys: ExtraKeys, expected: list[str]) -> None:
    assert chain(TOKENS, keys) == expected


def test_known_vectors_of_the_edges() -> None:
    assert chain([0, LARGEST_TOKEN], size=1) == [
        "5f3936b6a0625fdb191e22cc54f28b3253db2560b6cdbc029850f20f15566c1b",
        "d87e791fefa68f6f6ec61d25862b6ea164e572f62b823761b177f0a2e93e0409",
    ]


def test_known_vectors_of_the_fast_hash() -> None:
    pytest.importorskip("xxhash")
    assert chain(TOKENS, algorithm="xxh3_128") == [
        "222daea1ef5ca811a46183e80512828c",
        "6d544259504a5ecde10e4f2016b96185",
    ]


def test_the_stream_as_the_decision_tells_it() -> None:
    running = hashlib.sha256(struct.pack("<16sI", b"kvdist chain 1", 4).ljust(64, b"\0"))
    expected = []
    for start in (0, 4):
        running.update(struct.pack("<4I", *TOKENS[start : start + 4]))
        expected.append(running.hexdigest())
    assert chain(TOKENS) == expected


def test_the_stream_with_the_keys_of_a_request() -> None:
    part = struct.pack("<BI", 1, 16) + struct.pack("<I4sI4s", 4, b"name", 4, b"path")
    frame = struct.pack("<II", 0xFFFFFFFF, len(part)) + part
    running = hashlib.sha256(struct.pack("<16sI", b"kvdist chain 1", 4).ljust(64, b"\0"))
    running.update(frame + struct.pack("<4I", *TOKENS[:4]))
    assert chain(TOKENS[:4], LORA) == [running.hexdigest()]


def test_s6_a_key_names_everything_before_it() -> None:
    first, second = chain(TOKENS)
    other_first, other_second = chain([99, *TOKENS[1:]])
    assert first != other_first
    assert second != other_second  # although its own four tokens are the same


def test_s6_the_order_of_tokens_counts() -> None:
    assert chain([1, 2, 3, 4]) != chain([4, 3, 2, 1])


@pytest.mark.parametrize("keys", [ExtraKeys(), BOTH, ITEM, EMBEDS])
@pytest.mark.parametrize("cut", range(13))
def test_s8_bit_by_bit_gives_the_same_as_at_once(keys: ExtraKeys, cut: int) -> None:
    tokens = list(range(13))
    hashes = BlockHasher(4).start(keys)
    found = hashes.extend(tokens[:cut])
    found += hashes.extend(tokens[len(found) * 4 :])
    assert [key.hex() for key in found] == chain(tokens, keys)


def test_s8_token_by_token() -> None:
    hashes = BlockHasher(4).start(ExtraKeys())
    found: list[str] = []
    for end in range(1, 41):
        found += [key.hex() for key in hashes.extend(list(range(len(found) * 4, end)))]
        assert len(found) == end // 4
    assert found == chain(list(range(40)))


def test_s8_less_than_a_block_is_not_hashed() -> None:
    hashes = BlockHasher(4).start(ExtraKeys())
    assert hashes.extend([1, 2, 3]) == []
    assert hashes.extend([]) == []
    assert [key.hex() for key in hashes.extend([1, 2, 3, 4])] == chain([1, 2, 3, 4])


def test_s8_a_long_prompt_at_once_is_the_same_as_in_two_parts() -> None:
    tokens = [i * 2_654_435_761 % LARGEST_TOKEN for i in range(200_003)]
    at_once = chain(tokens, size=16)
    hashes = BlockHasher(16).start(ExtraKeys())
    parts = hashes.extend(tokens[:100_000]) + hashes.extend(tokens[100_000:])
    assert [key.hex() for key in parts] == at_once
    assert len(at_once) == len(set(at_once)) == 12_500


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 64, 1024])
def test_every_block_size(size: int) -> None:
    tokens = list(range(2 * size + size // 2))
    assert len(chain(tokens, size=size)) == len(tokens) // size


def test_the_block_size_is_part_of_the_key() -> None:
    assert chain(TOKENS, size=4)[1] != chain(TOKENS, size=8)[0]


def test_s7_sha256_is_the_default() -> None:
    assert BlockHasher(4).algorithm == "sha256"
    assert chain(TOKENS) == chain(TOKENS, algorithm="sha256")


def test_s7_both_hashes_have_no_key_in_common() -> None:
    pytest.importorskip("xxhash")
    assert not set(chain(TOKENS)) & set(chain(TOKENS, algorithm="xxh3_128"))
    assert set(ALGORITHMS) == {"sha256", "xxh3_128"}


def test_s7_the_fast_hash_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match="needs the package xxhash"):
        BlockHasher(4, "xxh3_128")


def test_an_unknown_hash_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ConfigError, match=r"md5.*sha256, xxh3_128"):
        BlockHasher(4, "md5")


def test_chains_of_one_hasher_are_apart() -> None:
    hasher = BlockHasher(4)
    first, second = hasher.start(ExtraKeys()), hasher.start(SALT)
    mixed = [first.extend(TOKENS[:4]), second.extend(TOKENS[:4]), first.extend(TOKENS[4:])]
    assert [key.hex() for key in mixed[0] + mixed[2]] == chain(TOKENS)
    assert [key.hex() for key in mixed[1]] == chain(TOKENS[:4], SALT)


@pytest.mark.parametrize("bad", [[-1], [2**32 - 1], [2**40], [1.5], ["a"], [b"a"], [None], "abcd"])
def test_what_is_no_token_is_refused_and_nothing_is_hashed(bad: list[int]) -> None:
    hashes = BlockHasher(4).start(ExtraKeys())
    with pytest.raises(InvalidRequest):
        hashes.extend([1, 2, 3, 4, *bad])
    assert [key.hex() for key in hashes.extend(TOKENS)] == chain(TOKENS)


def test_pack_tokens_is_little_endian() -> None:
    assert pack_tokens((1, LARGEST_TOKEN)) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert pack_tokens([]) == b""


def test_bytes_of_the_marker_across_two_tokens_are_no_marker() -> None:
    # FF FF 00 00 and 00 00 FF FF, the other way round: four FF bytes that no token has.
    assert len(pack_tokens([0xFFFF0000, 0x0000FFFF])) == 8
