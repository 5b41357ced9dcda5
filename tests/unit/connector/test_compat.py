"""Two nodes exchange blocks, or every field in which they differ is named, with both values."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvdist.connector.codec import decode, encode
from kvdist.connector.compat import common_version, differences, fingerprint
from kvdist.connector.geometry import Geometry, Group
from kvdist.connector.messages import VERSION, Fingerprint, GroupPrint, Hello
from kvdist.errors import ConfigError, Incompatible, RemoteProtocol
from kvdist.ids import Incarnation, Rank
from tests.unit.connector.wire import of_kind

FULL, WINDOW = Group("tokens", 16), Group("tokens", 16, window=128)
STATE = Group("state", 16)


def of(*groups: Group, heads: int = 8, ranks: int = 1, **more: Any) -> Fingerprint:
    """A node like most others."""
    settings: dict[str, Any] = {
        "weights": "5eed",
        "dtype": "bfloat16",
        "element_bits": 16,
        "head_size": 128,
        "num_layers": tuple(4 for _ in groups or (FULL,)),
        "hash_block_size": 16,
        "layout": "layer head token kv",
        "state_layout": "conv temporal" if any(g.kind == "state" for g in groups) else "",
    }
    return fingerprint(Geometry(groups or (FULL,), heads, ranks), **{**settings, **more})


def named(ours: Fingerprint, theirs: Fingerprint) -> list[str]:
    return [difference.field for difference in differences(ours, theirs)]


def test_like_nodes_speak_the_latest_version() -> None:
    assert common_version(of(), of()) == VERSION


CHANGES: list[tuple[str, Callable[[Fingerprint], Fingerprint]]] = [
    ("weights", lambda f: replace(f, weights="other")),
    ("dtype", lambda f: replace(f, dtype="float8_e4m3fn")),
    ("element_bits", lambda f: replace(f, element_bits=8)),
    ("scales", lambda f: replace(f, scales="5ca1e5")),
    ("num_heads", lambda f: replace(f, num_heads=4)),
    ("head_size", lambda f: replace(f, head_size=64)),
    ("hash_algorithm", lambda f: replace(f, hash_algorithm="sha512")),
    ("hash_block_size", lambda f: replace(f, hash_block_size=8)),
    ("drafter", lambda f: replace(f, drafter="eagle")),
    ("layout", lambda f: replace(f, layout="layer token head kv")),
    ("state_layout", lambda f: replace(f, state_layout="conv temporal")),
    ("number of groups", lambda f: replace(f, groups=f.groups * 2)),
    ("kind of group 0", lambda f: _first(f, kind="state")),
    ("num_layers of group 0", lambda f: _first(f, num_layers=5)),
    ("window of group 0", lambda f: _first(f, window=64)),
    ("chunk of group 0", lambda f: _first(f, chunk=64)),
    ("versions", lambda f: replace(f, oldest_version=3, latest_version=4)),
]


def _first(of: Fingerprint, **changed: Any) -> Fingerprint:
    return replace(of, groups=(replace(of.groups[0], **changed), *of.groups[1:]))


@pytest.mark.parametrize(("field", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_each_field_is_named(field: str, change: Callable[[Fingerprint], Fingerprint]) -> None:
    ours, theirs = of(), change(of())
    assert field in named(ours, theirs)
    assert field in named(theirs, ours)
    with pytest.raises(Incompatible, match=field):
        common_version(ours, theirs)


def test_every_field_is_compared() -> None:
    """A field that is added is compared, or says why not."""
    compared = {name.split()[0] for name, _ in CHANGES}
    may_differ = {"num_ranks", "groups", "oldest_version", "latest_version"}
    assert {field.name for field in fields(Fingerprint)} - may_differ <= compared
    assert {field.name for field in fields(GroupPrint)} - {"block_size"} <= compared


def test_all_that_differs_is_named_at_once() -> None:
    ours, theirs = of(), of(weights="other", head_size=64)
    with pytest.raises(Incompatible) as caught:
        common_version(ours, theirs)
    assert str(caught.value) == (
        "weights: ours '5eed', theirs 'other'; head_size: ours 128, theirs 64"
    )


# -- what may differ -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_ranks_may_differ_where_heads_are_cut(ranks: int) -> None:
    assert not differences(of(ranks=2), of(ranks=ranks))


def test_block_sizes_may_differ_where_all_is_kept() -> None:
    assert not differences(of(), of(Group("tokens", 64)))
    ours, theirs = of(FULL, WINDOW), of(Group("tokens", 64), replace(WINDOW, block_size=64))
    assert named(ours, theirs) == ["block_size of group 0", "block_size of group 1"]


def test_a_block_size_that_hashes_do_not_divide() -> None:
    theirs = _first(of(), block_size=24)
    assert named(of(), theirs) == ["block_size of group 0 (a multiple of hash_block_size)"]
    assert named(of(), _first(of(), block_size=0))


def test_an_older_peer_is_spoken_to_in_its_version() -> None:
    older = replace(of(), oldest_version=0, latest_version=VERSION - 1)
    assert common_version(of(), older) == common_version(older, of()) == VERSION - 1
    newer = replace(of(), oldest_version=VERSION, latest_version=VERSION + 5)
    assert common_version(of(), newer) == VERSION


# -- what happened to others -----------------------------------------------------------------------


def test_e2() -> None:
    """Hybrids whose block sizes came out differently, by the number of ranks."""
    ours = of(Group("tokens", 16), Group("state", 64))
    theirs = of(Group("tokens", 32), Group("state", 128))
    with pytest.raises(Incompatible) as caught:
        common_version(ours, theirs)
    assert "block_size of group 0: ours 16, theirs 32" in str(caught.value)
    assert "block_size of group 1: ours 64, theirs 128" in str(caught.value)


def test_e3() -> None:
    """Groups count in units of their own: each is compared by itself."""
    small, large = Group("tokens", 4), Group("tokens", 256)
    ours = of(small, large, hash_block_size=4)
    assert not differences(ours, ours)
    assert not differences(ours, of(large, small, hash_block_size=4))
    windows = of(small, Group("tokens", 256, window=512), hash_block_size=4)
    assert named(ours, windows) == ["window of group 1"]


def test_e5() -> None:
    """A pair of ranks that can't exchange is refused on first contact, before any transfer."""
    with pytest.raises(Incompatible, match=r"num_ranks \(states can't be cut\): ours 1, theirs 4"):
        common_version(of(FULL, STATE, ranks=1), of(FULL, STATE, ranks=4))
    odd = replace(of(), num_ranks=Rank(3))
    with pytest.raises(Incompatible, match=r"num_ranks \(they can't share heads\)"):
        common_version(of(), odd)
    with pytest.raises(Incompatible, match="num_ranks"):
        common_version(of(), replace(of(), num_ranks=Rank(0)))


def test_e7() -> None:
    """States need a layout that is agreed on, and whoever has none doesn't start."""
    with pytest.raises(ConfigError, match="state_layout"):
        of(FULL, STATE, state_layout="")
    assert not differences(of(FULL, STATE), of(FULL, STATE))


def test_e8() -> None:
    """There is no way round: equal names of types with unequal elements are seen all the same."""
    ours, theirs = of(dtype="auto"), of(dtype="auto", element_bits=8)
    assert named(ours, theirs) == ["element_bits"]


def test_a_hash_for_single_nodes() -> None:
    with pytest.raises(ConfigError, match="single nodes"):
        of(hash_algorithm="xxh3_128")
    fast = replace(of(), hash_algorithm="xxh3_128")
    assert named(fast, fast) == ["hash_algorithm (for single nodes only)"]


def test_layers_of_each_group() -> None:
    with pytest.raises(ConfigError, match="1 groups, and layers of 2"):
        of(num_layers=(4, 4))


# -- over the wire ---------------------------------------------------------------------------------


def test_hello_carries_it() -> None:
    hello = Hello("p", Incarnation(3), of(FULL, WINDOW))
    assert decode(encode(hello)) == hello


@given(
    of_kind(Fingerprint), st.sets(st.sampled_from([field.name for field in fields(Fingerprint)]))
)
def test_whatever_a_peer_says_of_itself(strange: Fingerprint, honest: set[str]) -> None:
    """It is compared without harm, and both sides come to the same end."""
    theirs = replace(strange, **{name: getattr(of(), name) for name in honest})
    assert bool(differences(of(), theirs)) == bool(differences(theirs, of()))


def test_a_fingerprint_of_too_many_groups() -> None:
    many = replace(of(), groups=of().groups * 1025)
    with pytest.raises(RemoteProtocol, match="groups"):
        decode(encode(Hello("p", Incarnation(1), many)))
