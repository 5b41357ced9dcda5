"""Who is there: runs of a node in order (T21), silence, and this process standing still (T22)."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvdist.errors import NodeFailed, Superseded, Unavailable
from kvdist.router import registry as module
from kvdist.router.nodes import Node, Nodes
from kvdist.router.registry import LOOK_S, Registry
from kvdist.web.membership import EXPIRES_S, SILENT_S, Member


def member(node_id: str = "p0", incarnation: int = 1, **more: Any) -> Member:
    told: dict[str, Any] = {
        "role": "prefill",
        "model": "m",
        "api": "http://h:1",
        "control": "tcp://h:2",
    }
    told |= {"ready": True, **more}
    return Member.model_validate({"node_id": node_id, "incarnation": incarnation, **told})


def registry() -> tuple[Registry, Nodes]:
    nodes = Nodes()
    return Registry(nodes, 0.0), nodes


def names(nodes: Iterable[Node]) -> list[str]:
    return [node.name for node in nodes]


def look(found: Registry, since_s: float, until_s: float) -> None:
    """As the process does: again and again."""
    for i in range(int((until_s - since_s) / LOOK_S)):
        found.expire(since_s + (i + 1) * LOOK_S)


def test_a_node_is_there_until_it_is_silent() -> None:
    found, nodes = registry()
    found.heard(member(), 0)
    look(found, 0, 5)
    found.heard(member(ready=False, role="both"), 5)
    look(found, 5, 5 + EXPIRES_S)
    (node,) = nodes
    assert (node.name, node.role, node.ready, node.url) == ("p0", "both", False, "http://h:1")
    look(found, 5 + EXPIRES_S, 6 + EXPIRES_S)
    assert not names(nodes) and not found.members


def test_a_silent_node_gets_nothing_new_and_goes_on_with_what_it_has() -> None:
    """A machine that has too much to do: what is under way there isn't lost."""

    async def wait(node: Node) -> None:
        async with node.asked():
            await asyncio.Event().wait()

    async def main() -> None:
        found, nodes = registry()
        found.heard(member(role="decode"), 0)
        (node,) = nodes
        waiting = asyncio.create_task(wait(node))
        await asyncio.sleep(0)
        look(found, 0, SILENT_S + 2)
        assert nodes.decoder("m") is None
        await asyncio.sleep(0)
        assert not waiting.done()
        found.heard(member(role="decode"), SILENT_S + 2)
        assert nodes.decoder("m") is node
        look(found, SILENT_S + 2, SILENT_S + 3 + EXPIRES_S)
        with pytest.raises(NodeFailed, match="nothing was heard"):
            await waiting

    asyncio.run(main())


def test_a_node_that_was_silent_may_come_back() -> None:
    found, nodes = registry()
    found.heard(member(incarnation=7), 0)
    look(found, 0, 30)
    with pytest.raises(Superseded):
        found.heard(member(incarnation=6), 30)
    found.heard(member(incarnation=7), 30)
    assert names(nodes) == ["p0"]


def test_a_later_run_takes_the_place_of_an_earlier_one() -> None:
    found, nodes = registry()
    found.heard(member(incarnation=1), 0)
    before = nodes.get("p0")
    found.heard(member(incarnation=2, api="http://h:9"), 1)
    (node,) = nodes
    assert node is not before and node.url == "http://h:9"
    with pytest.raises(Superseded, match="this run of p0 is over"):
        found.heard(member(incarnation=1), 2)
    assert list(nodes) == [node]


def test_what_comes_after_the_end_is_late() -> None:
    found, nodes = registry()
    found.heard(member(incarnation=5), 0)
    found.left("p0", 4)
    assert names(nodes) == ["p0"]
    found.left("p0", 5)
    found.left("p0", 5)
    assert not names(nodes)
    with pytest.raises(Superseded):
        found.heard(member(incarnation=5), 1)
    found.heard(member(incarnation=6), 1)
    assert names(nodes) == ["p0"]


def test_two_processes_of_one_name_that_began_together() -> None:
    found, nodes = registry()
    found.heard(member(), 0)
    with pytest.raises(Superseded, match="another process"):
        found.heard(member(api="http://elsewhere:1"), 1)
    assert [node.url for node in nodes] == ["http://h:1"]


def test_a_name_that_the_router_was_given() -> None:
    found, nodes = registry()
    nodes.put(Node("p0", "decode", "http://other:1"))
    with pytest.raises(Superseded, match="was given"):
        found.heard(member(), 0)
    assert [node.url for node in nodes] == ["http://other:1"]


def test_silence_that_nobody_could_hear_is_none() -> None:
    found, nodes = registry()
    found.heard(member(), 0)
    look(found, 0, 1)
    found.expire(100)  # this process stood still
    assert names(nodes) == ["p0"]
    look(found, 100, 100 + EXPIRES_S + 1)
    assert not names(nodes)


def test_there_is_an_end_to_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 5)
    found, nodes = registry()
    for i in range(3):
        found.heard(member(f"p{i}"), 0)
    with pytest.raises(Unavailable):
        found.heard(member("p3"), 0)
    found.heard(member("p2", incarnation=2), 0)
    assert names(nodes) == ["p0", "p1", "p2"]
    found.left("p2", 2)
    for i in range(20):
        found.heard(member(f"x{i}"), 0)
        found.left(f"x{i}", 1)
    assert len(found._over) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_id": "a b"},
        {"node_id": ""},
        {"node_id": "x" * 129},
        {"incarnation": -1},
        {"incarnation": 1 << 63},
        {"incarnation": True},
        {"incarnation": "1"},
        {"role": "other"},
        {"model": ""},
        {"api": "ftp://h:1"},
        {"api": "http://h:1/path"},
        {"api": "http://user@h:1"},
        {"api": "http://h:1\n"},
        {"control": "h:1"},
        {"control": "tcp://h h"},
        {"ready": 1},
    ],
)
def test_what_is_not_a_member(wrong: dict[str, Any]) -> None:
    member()
    with pytest.raises(ValueError, match="1 validation error"):
        member(**{"node_id": "p0", "incarnation": 1, **wrong})


@given(st.lists(st.tuples(st.sampled_from(["hear", "leave", "wait"]), st.integers(0, 4))))
def test_of_one_name_there_is_one_run_and_it_never_goes_back(
    words: list[tuple[str, int]],
) -> None:
    found, nodes = registry()
    now_s, highest = 0.0, -1
    for word, number in words:
        if word == "wait":
            look(found, now_s, now_s + 2 * number)
            now_s += 2 * number
        elif word == "leave":
            found.left("p0", number)
        else:
            try:
                found.heard(member(incarnation=number), now_s)
            except Superseded:
                assert number <= highest
            else:
                assert number >= highest
                highest = number
        assert names(nodes) == [one.node_id for one in found.members]
        assert len(found.members) <= 1


def test_who_is_gone_says_so_to_all_that_wait() -> None:
    node = Node("p0", "prefill", "http://h:1")
    node.lose("a test")
    node.lose("twice")
    assert isinstance(node._gone, NodeFailed)


def test_a_pair_is_one_when_the_decode_node_has_heard_of_the_other() -> None:
    found, nodes = registry()
    found.heard(member("d0", role="decode"), 0)
    found.told("d0")
    found.heard(member("p0"), 1)
    found.told("p0")
    decode, prefill = nodes.get("d0"), nodes.get("p0")
    assert decode is not None and prefill is not None
    assert nodes.prefiller(decode) is None and not decode.knows(prefill)
    assert prefill.knows(decode) and not nodes.can_answer(needs_prefill=True)
    found.heard(member("d0", role="decode"), 2)
    found.told("d0")
    assert nodes.prefiller(decode) is prefill
    found.heard(member("p0", incarnation=2), 3)  # another run, perhaps elsewhere
    assert nodes.prefiller(decode) is None
