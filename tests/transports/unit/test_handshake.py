import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.transports.linked import config
from transports.address import parse
from transports.config import least_window
from transports.errors import LocalMisuse, Refused, RemoteProtocol, TransportError
from transports.frame import Frame, Type, decode
from transports.handshake import (
    Hello,
    check_proof,
    check_token_use,
    judge,
    make_hello,
    parse_hello,
    proof,
)
from transports.memory import MemoryTransport
from transports.wire import Wire

TOKEN = b"0123456789abcdef"


def _hello(**changes: Any) -> bytes:
    return json.dumps({**json.loads(make_hello(config(), bytes(32)).raw), **changes}).encode()


def test_what_is_said_is_heard() -> None:
    hello = parse_hello(make_hello(config("nöde", incarnation="7", token=TOKEN), bytes(32)).raw)
    assert (hello.node_id, hello.incarnation, hello.has_token) == ("nöde", "7", True)
    assert hello.window_bytes == config().window_bytes
    assert hello.max_meta_bytes == config().max_meta_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {"node": ""},
        {"node": "x" * 257},
        {"node": 7},
        {"node": "half \ud800 of a pair"},
        {"node": "two\nlines"},
        {"incarnation": ""},
        {"nonce": "zz"},
        {"nonce": "00" * 31},
        {"nonce": 5},
        {"window": 0},
        {"window": 1 << 61},
        {"window": True},
        {"window": 1.5},
        {"window": 2 * (64 << 10)},
        {"eager": -1},
        {"eager": 1 << 40},
        {"max_body": "1"},
        {"max_meta": 0x10000},
        {"protocol": True},
        {"protocol": None},
        {"protocol": "x" * 70_000},
    ],
    ids=str,
)
def test_what_is_no_introduction(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocol):
        parse_hello(_hello(**changes))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b"[" * 60_000,
        b'{"protocol":1' + b',"a":[' * 9_000,
        b'{"protocol":1,"window":' + b"9" * 60_000 + b"}",
        b'{"protocol":1,"window":1e999}',
    ],
    ids=lambda raw: raw[:12].decode(errors="replace"),
)
def test_hostile_json(raw: bytes) -> None:
    with pytest.raises(RemoteProtocol):
        parse_hello(raw)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=70)
NAMES = st.sampled_from(list(json.loads(_hello())))
CHANGES = st.dictionaries(NAMES, LEAVES | st.lists(LEAVES, max_size=2), min_size=1, max_size=3)


@given(CHANGES)
def test_any_fields_are_an_introduction_or_an_error(changes: dict[str, Any]) -> None:
    try:
        hello = parse_hello(_hello(**changes))
    except (RemoteProtocol, Refused):
        return
    assert least_window(hello.eager_bytes) <= hello.window_bytes


@given(st.binary(max_size=500))
def test_any_bytes_are_an_introduction_or_an_error(raw: bytes) -> None:
    with pytest.raises((RemoteProtocol, Refused)):
        parse_hello(raw)


def test_another_protocol_is_refused_briefly() -> None:
    with pytest.raises(Refused) as caught:
        parse_hello(_hello(protocol=10**300))
    assert len(str(caught.value)) < 100


def test_proofs_differ_by_token_role_and_introductions() -> None:
    one, two = (make_hello(config(name, token=TOKEN), bytes(32)) for name in "ab")
    ours = config(token=TOKEN)
    proofs = {
        proof(ours, "initiator", one, two),
        proof(ours, "acceptor", one, two),
        proof(ours, "initiator", two, one),
        proof(config(token=TOKEN[::-1]), "initiator", one, two),
        proof(config(), "initiator", one, two),
        proof(ours, "initiator", make_hello(ours, b"1" * 32), two),
    }
    assert len(proofs) == 6
    check_proof(proof(ours, "acceptor", one, two), proof(ours, "acceptor", one, two))
    for wrong in (b"", bytes(32), proof(ours, "acceptor", one, two)[:-1]):
        with pytest.raises(Refused):
            check_proof(proof(ours, "acceptor", one, two), wrong)


def test_judging() -> None:
    with_token = make_hello(config("a", token=TOKEN), bytes(32))
    without = make_hello(config("a"), bytes(32))
    check_token_use(config(token=TOKEN), with_token)
    check_token_use(config(), without)
    for ours, hello in ((config(), with_token), (config(token=TOKEN), without)):
        with pytest.raises(Refused):
            check_token_use(ours, hello)
    assert judge(config(token=TOKEN), with_token, "there").address == "there"
    assert judge(config(allow=frozenset("a")), without, "there").node_id == "a"
    with pytest.raises(Refused):
        judge(config(allow=frozenset()), without, "there")


@pytest.mark.parametrize("name", ["friend", "stranger"])
def test_who_does_not_know_the_token_learns_nothing_of_the_list(name: str) -> None:
    """Whatever it calls itself, it hears the same."""

    async def main() -> None:
        listed = config("far", token=TOKEN, allow=frozenset({"friend"}))
        async with MemoryTransport(listed).open() as far, MemoryTransport(config()).open() as near:
            await far.listen("memory://listed")
            wire = await near.dial(parse("memory://listed"))
            with pytest.raises(Refused, match="does not know the cluster token"):
                await _bluff(wire, make_hello(config(name, token=b"x" * 16), bytes(32)))
            wire.abort()

    asyncio.run(main())


async def _bluff(wire: Wire, hello: Hello) -> None:
    await wire.send(Frame(Type.HELLO, 0, meta=hello.raw).encode())
    answer = decode(await wire.recv_head())
    if answer.type is Type.HELLO:
        await wire.send(Frame(Type.PROOF, 1, meta=bytes(32)).encode())
        answer = decode(await wire.recv_head())
    raise Refused(answer.meta.decode())


@pytest.mark.parametrize(
    "settings",
    [
        {"node_id": ""},
        {"node_id": "two\nlines"},
        {"node_id": "x" * 257},
        {"incarnation": ""},
        {"token": b"short"},
        {"max_meta_bytes": 0},
        {"max_meta_bytes": 0x10000},
        {"max_body_bytes": 0},
        {"max_body_bytes": 1 << 62},
        {"eager_bytes": 0},
        {"eager_bytes": 1 << 20},
        {"window_bytes": 1000},
        {"window_bytes": 1 << 41},
        {"part_bytes": 0},
        {"keepalive_s": 0},
        {"lost_after_s": 1.5},
        {"handshake_s": -1},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        config(**settings)


def test_every_error_says_who_is_to_blame() -> None:
    def all_of(kind: type[TransportError]) -> list[type[TransportError]]:
        return [kind, *(sub for child in kind.__subclasses__() for sub in all_of(child))]

    for kind in all_of(TransportError):
        assert kind.blame in ("caller", "peer", "network")
        assert isinstance(kind.retryable, bool)
        assert kind.__doc__
