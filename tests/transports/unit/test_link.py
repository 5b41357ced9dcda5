"""Links against a peer that says what it likes when it likes: the corners of `WireLink`."""

import asyncio
import contextlib
from typing import Any

import pytest

from tests.transports.linked import linked
from tests.transports.raw import raw_peer
from transports.api import Head
from transports.errors import (
    BodyRefused,
    LocalMisuse,
    PeerClosed,
    PeerLost,
    RemoteProtocol,
    Unsupported,
)
from transports.frame import Flag, Type
from transports.ledger import MAX_REGIONS
from transports.link import WireLink
from transports.memory import MemoryWire
from transports.session import MESSAGE_COST

LARGE = 100_000


async def _turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def _run(test: Any) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(limited())


def test_a_late_verdict_is_not_that_of_the_next_offer() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            first = asyncio.create_task(raw.link.send(1, b"", [bytes(LARGE)]))
            offer, _ = await raw.peer.hear(Type.OFFER)
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.create_task(raw.link.send(2, b"", [bytes(LARGE)]))
            next_offer, _ = await raw.peer.hear(Type.OFFER)
            await raw.peer.say(Type.ACCEPT, argument=offer.argument)
            await _turns()
            await raw.peer.say(Type.REFUSE, argument=next_offer.argument)
            with pytest.raises(BodyRefused):
                await second
            await raw.link.send(3)
            assert (await raw.peer.hear(Type.BODY, Type.MESSAGE))[0].kind == 3

    _run(test)


def test_a_verdict_given_twice() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            sending = asyncio.create_task(raw.link.send(1, b"", [bytes(LARGE)]))
            offer, _ = await raw.peer.hear(Type.OFFER)
            await raw.peer.say(Type.REFUSE, argument=offer.argument)
            await raw.peer.say(Type.ACCEPT, argument=offer.argument)
            with pytest.raises((BodyRefused, RemoteProtocol)):
                await sending
            with pytest.raises(RemoteProtocol):
                await raw.link.recv()

    _run(test)


def test_what_was_offered_before_bye_is_void() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            await raw.peer.say(Type.MESSAGE, kind=1)
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.say(Type.MESSAGE, kind=2)
            await raw.peer.say(Type.BYE)
            await raw.peer.hear(Type.BYE)
            assert (await raw.link.recv()).kind == 1
            assert (await raw.link.recv()).kind == 2
            with pytest.raises(PeerClosed):
                await raw.link.recv()

    _run(test)


def test_bye_frees_a_receive_whose_body_was_not_begun() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            receiving = asyncio.create_task(raw.link.recv(lambda head: [bytearray(LARGE)]))
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            await raw.peer.say(Type.BYE)
            with pytest.raises(PeerClosed):
                await receiving

    _run(test)


def test_messages_behind_an_offer_that_bye_made_void() -> None:
    """The peer withdrew it, and closed before it could say so."""

    async def test() -> None:
        async with raw_peer() as raw:
            receiving = asyncio.create_task(raw.link.recv(lambda head: [bytearray(LARGE)]))
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            await raw.peer.say(Type.MESSAGE, kind=7)
            await raw.peer.say(Type.BYE)
            assert (await receiving).kind == 7
            with pytest.raises(PeerClosed):
                await raw.link.recv()

    _run(test)


def test_a_withdrawal_that_comes_while_the_next_body_lands() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            with pytest.raises(BodyRefused):
                await raw.link.recv()
            target = bytearray(LARGE)
            receiving = asyncio.create_task(raw.link.recv(lambda head: [target]))
            await raw.peer.say(Type.OFFER, argument=2, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            await raw.peer.say(Type.WITHDRAW, argument=1)
            await _turns()
            assert not receiving.done()
            await raw.peer.say(Type.BODY, argument=2, body=b"x" * LARGE)
            await receiving
            assert target == b"x" * LARGE

    _run(test)


def test_closing_ends_a_waiting_receive_before_the_peer_answers() -> None:
    async def test() -> None:
        async with raw_peer(close_s=5.0) as raw:
            receiving = asyncio.create_task(raw.link.recv())
            await _turns()
            closing = asyncio.create_task(raw.link.close())
            async with asyncio.timeout(1):
                with pytest.raises(LocalMisuse):
                    await receiving
            assert not closing.done()
            await raw.peer.hear(Type.BYE)
            await raw.peer.say(Type.BYE)
            await closing

    _run(test)


def test_bye_within_a_body() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            receiving = asyncio.create_task(raw.link.recv(lambda head: [bytearray(LARGE)]))
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            await raw.peer.say(Type.BODY, argument=1, body=bytes(10))
            await raw.peer.say(Type.BYE)
            with pytest.raises(RemoteProtocol):
                await receiving

    _run(test)


def test_offers_behind_the_last_part_of_a_body() -> None:
    """All in one burst, before the receiver's task has had a turn."""

    async def test() -> None:
        async with raw_peer() as raw:
            target = bytearray(LARGE)
            receiving = asyncio.create_task(raw.link.recv(lambda head: [target]))
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            await raw.peer.say(Type.BODY, argument=1, body=b"x" * LARGE)
            await raw.peer.say(Type.WITHDRAW, argument=1)
            await raw.peer.say(Type.OFFER, argument=2, body_bytes=LARGE)
            await raw.peer.say(Type.WITHDRAW, argument=2)
            await raw.peer.say(Type.MESSAGE, kind=9)
            assert await receiving == Head(0, b"", LARGE)
            assert target == b"x" * LARGE
            assert (await raw.link.recv(lambda head: [target])).kind == 9

    _run(test)


@pytest.mark.parametrize("turns", range(6))
def test_a_part_arrives_as_its_receive_is_cancelled(turns: int) -> None:
    """A race between two tasks of ours is no bug of the peer's, nor does it bring us down."""

    async def test() -> None:
        async with raw_peer() as raw:
            receiving = asyncio.create_task(raw.link.recv(lambda head: [bytearray(LARGE)]))
            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            await raw.peer.hear(Type.ACCEPT)
            saying = asyncio.create_task(raw.peer.say(Type.BODY, argument=1, body=bytes(10)))
            await _turns(turns)
            receiving.cancel()
            await asyncio.wait([receiving, saying])
            saying.exception()
            assert receiving.cancelled()
            with pytest.raises(PeerLost):
                await raw.link.recv()

    _run(test)


def test_a_place_that_aborts_the_link() -> None:
    async def test() -> None:
        async with raw_peer() as raw:

            def place(head: Head) -> list[bytearray]:
                raw.link.abort()
                return [bytearray(LARGE)]

            await raw.peer.say(Type.OFFER, argument=1, body_bytes=LARGE)
            with pytest.raises(PeerLost):
                await raw.link.recv(place)

    _run(test)


def test_one_region_shared_by_two_tasks_at_once() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            region = raw.transport.allocate(10)
            other = raw.transport.allocate(10)
            shares = [raw.link.share(each) for each in (region, region, other, region)]
            assert await asyncio.gather(*shares) == [1, 1, 2, 1]
            assert [(await raw.peer.hear(Type.REGION))[0].argument for _ in range(2)] == [1, 2]
            region.close()
            other.close()

    _run(test)


def test_more_regions_than_the_peer_takes() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            hearing = asyncio.create_task(raw.peer.until_cut_off())
            for _ in range(MAX_REGIONS):
                await raw.link.share(raw.transport.allocate(1))
            with pytest.raises(LocalMisuse):
                await raw.link.share(raw.transport.allocate(1))
            raw.link.abort()
            await hearing

    _run(test)


def test_a_region_where_there_can_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: MemoryWire, description: bytes, size: int) -> Any:
        raise Unsupported("no reads here")

    monkeypatch.setattr(MemoryWire, "attach", none)

    async def test() -> None:
        async with raw_peer() as raw:
            await raw.peer.say(Type.REGION, argument=1, body_bytes=5)
            with pytest.raises(RemoteProtocol, match="there can be none"):
                await raw.link.recv()

    _run(test)


@pytest.mark.parametrize("large", [False, True])
def test_cancelled_behind_another_frame_a_message_returns_its_credit(large: bool) -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            link = raw.link
            assert isinstance(link, WireLink)
            credit = link._session.credit
            async with link._writing:
                sending = asyncio.create_task(link.send(1, b"m", [bytes(LARGE if large else 10)]))
                await _turns()
                assert link._session.credit < credit
                sending.cancel()
                await asyncio.wait([sending])
            assert link._session.credit == credit
            await link.send(2)
            assert (await raw.peer.hear(Type.MESSAGE, Type.OFFER))[0].kind == 2

    _run(test)


def test_a_corrupt_small_body() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            await raw.peer.say(Type.MESSAGE, body=b"abc", flags=Flag.BODY_CRC, body_crc=1)
            with pytest.raises(RemoteProtocol, match="corrupt"):
                await raw.link.recv()

    _run(test)


def test_a_link_that_broke_holds_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is kept, but not the frames of the call that it was raised in."""

    async def test() -> None:
        async with raw_peer() as raw:
            body = bytearray(LARGE)
            sending = asyncio.create_task(raw.link.send(1, b"", [body]))
            offer, _ = await raw.peer.hear(Type.OFFER)

            async def fails(head: bytes, views: object) -> None:
                raise PeerLost("it broke as the body was sent")

            monkeypatch.setattr(raw.link._wire, "send", fails)  # type: ignore[attr-defined]
            await raw.peer.say(Type.ACCEPT, argument=offer.argument)
            await asyncio.wait([sending])
            assert type(sending.exception()) is PeerLost
            del sending
            await raw.link.quiet()
            body.append(0)

    _run(test)


def test_pings_are_answered_and_merged() -> None:
    async def test() -> None:
        async with raw_peer() as raw:
            for _ in range(1000):
                await raw.peer.say(Type.PING)
            await raw.peer.hear(Type.PONG)
            await raw.peer.say(Type.PONG)
            await raw.link.send(7)
            assert (await raw.peer.hear(Type.MESSAGE))[0].kind == 7

    _run(test)


def test_who_breaks_the_protocol_while_we_send() -> None:
    """The sender hears the reason, and not only that the link is gone."""

    async def test() -> None:
        async with raw_peer() as raw:
            sending = asyncio.create_task(raw.link.send(1, b"", [bytes(LARGE)]))
            await raw.peer.hear(Type.OFFER)
            await raw.peer.say(Type.HELLO)
            with pytest.raises(RemoteProtocol):
                await sending
            with pytest.raises(RemoteProtocol):
                await raw.link.send(1)

    _run(test)


@pytest.mark.parametrize("method", ["recv_head", "attach"])
def test_a_bug_ends_one_link_and_is_told(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other links go on; the loop's handler hears of it, and leaving the context raises it."""
    heard: list[str] = []

    async def test() -> None:
        handler = lambda loop, context: heard.append(context["message"])  # noqa: E731
        asyncio.get_running_loop().set_exception_handler(handler)
        async with raw_peer() as raw, linked("memory://beside") as beside:
            bug = ZeroDivisionError("a bug")

            def fails(*_: Any) -> Any:
                raise bug

            monkeypatch.setattr(raw.link._wire, method, fails)  # type: ignore[attr-defined]
            await raw.peer.say(Type.PING)  # for the call that was there before the bug
            await raw.peer.say(Type.REGION, argument=1, body_bytes=5)
            with pytest.raises(PeerLost, match="a bug on this side"):
                await raw.link.recv()
            await beside.near.send(1)
            assert (await beside.far.recv()).kind == 1
            await raw.link.close()

    with pytest.raises(ExceptionGroup) as caught:
        _run(test)
    assert caught.group_contains(ZeroDivisionError, match="a bug")
    assert len(heard) == 1
    assert heard[0].startswith("bug in link")


def test_a_bug_in_sending_comes_up_at_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with raw_peer() as raw:

            async def fails(*_: Any) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(raw.link._wire, "send", fails)  # type: ignore[attr-defined]
            with pytest.raises(ZeroDivisionError):
                await raw.link.send(1)
            with pytest.raises(PeerLost, match="a bug"):
                await raw.link.send(1)

    _run(test)


def test_a_peer_that_never_reads_does_not_make_us_grow() -> None:
    """Refused offers make answers; they are granted again only as far as answers are written."""

    async def test() -> None:
        async with raw_peer() as raw:
            link = raw.link
            assert isinstance(link, WireLink)
            async with link._writing:  # nothing we say goes out

                async def refuse_all() -> None:
                    while True:
                        with contextlib.suppress(BodyRefused):
                            await link.recv()

                async def offer_without_end() -> None:
                    for number in range(1, 100_000):
                        await raw.peer.say(Type.OFFER, argument=number, body_bytes=LARGE)
                        await asyncio.sleep(0)

                refusing = asyncio.create_task(refuse_all())
                with pytest.raises(PeerLost):
                    await offer_without_end()
                with pytest.raises(RemoteProtocol):
                    await refusing
            assert len(link._control._answers) < 2 * link._config.window_bytes // MESSAGE_COST + 2

    _run(test)
