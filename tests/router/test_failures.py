"""Nodes that are busy, die, hang or talk nonsense; clients that leave: rows P1, P3, P4, A17."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvdist.errors import Unavailable
from tests.router.fake import LONG, TEXT, FakeNode, Json, Running, pair, running, until

Talk = Callable[[Running, FakeNode, FakeNode], Awaitable[None]]
BODY: Json = {"prompt": LONG, "max_tokens": 9}
LEASE = {"kvdist": {"lease": "aa" * 16}}
BOTH_WAYS = pytest.mark.parametrize("overlap", [True, False])


def talk(conversation: Talk, **settings: Any) -> None:
    async def main() -> None:
        prefill, decode = pair()
        async with running(prefill, decode, **settings) as router:
            await conversation(router, prefill, decode)

    asyncio.run(main())


def transfer(params: Json | None) -> str:
    return str((params or {}).get("kvdist", {}).get("transfer_id"))


def by_name(prefill: FakeNode) -> Json:
    """What names the first transfer that it was asked for."""
    return {
        "do_remote_prefill": True,
        "remote_engine_id": prefill.name,
        "kvdist": {"transfer_id": transfer(prefill.params[0])},
    }


# -- before the first byte ---------------------------------------------------------------------


@BOTH_WAYS
@pytest.mark.parametrize("status", [503, 429, 502, 0])
def test_another_decode_node_is_asked(status: int, overlap: bool) -> None:
    async def main() -> None:
        prefill, first = pair(statuses=[status])
        second = FakeNode("d1", "decode")
        async with running(prefill, first, second, overlap=overlap) as router:
            answered, answer = await router.post(BODY)
            assert (answered, answer["choices"][0]["text"]) == (200, "one two three")
            assert len(first.asked) == len(second.asked) == 1
            if overlap:
                assert transfer(first.params[0]) != transfer(second.params[0])

    asyncio.run(main())


def test_a_ticket_that_was_not_touched_is_given_to_another() -> None:
    async def main() -> None:
        prefill, first = pair(statuses=[503])
        second = FakeNode("d1", "decode")
        async with running(prefill, first, second, overlap=False) as router:
            assert (await router.post(BODY))[0] == 200
            assert first.params == second.params == [LEASE]
            assert len(prefill.asked) == 1 and not prefill.released

    asyncio.run(main())


@BOTH_WAYS
def test_a_lease_that_nobody_will_use_is_released(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.statuses = [503]
        if overlap:
            decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and router.requests("p0") == 0)
        decode.begin.set()
        status, answer = await asking
        assert (status, answer["error"]["type"]) == (503, "overloaded_error")
        await until(lambda: prefill.released)
        assert prefill.released == [by_name(prefill)]
        assert await router.number("releases_total") == 1

    talk(conversation, overlap=overlap)


@BOTH_WAYS
def test_another_prefill_node_is_asked(overlap: bool) -> None:
    async def main() -> None:
        first, decode = pair()
        first.statuses = [503]
        second = FakeNode("p1", "prefill")
        async with running(first, second, decode, overlap=overlap) as router:
            if overlap:  # reading along with a node that doesn't compute
                decode.begin.clear()
            asking = asyncio.create_task(router.post(BODY))
            await until(lambda: second.asked)
            decode.begin.set()
            assert (await asking)[0] == 200
            assert len(first.asked) == len(second.asked) == 1
            if overlap:
                await until(lambda: decode.num_cancelled == 1)
                assert len({transfer(params) for params in decode.params}) == 2

    asyncio.run(main())


@BOTH_WAYS
def test_prefill_that_fails_is_no_secret(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [503]
        if overlap:
            decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: len(decode.asked) == (2 if overlap else 1))
        decode.begin.set()
        assert (await asking)[0] == 200
        assert decode.params[-1] is None
        assert await router.number('tries_total{way="prefill failed"}') == 1
        name = 'node_failures_total{node="p0",reason="busy",role="prefill"}'
        assert await router.number(name) == 1

    talk(conversation, overlap=overlap)


def test_prefill_that_fails_again_and_again_is_left_alone() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [500] * 9
        assert (await router.post(BODY))[0] == 200
        assert len(prefill.asked) == 2
        assert decode.params == [None]

    talk(conversation, overlap=False, max_tries=2)


@BOTH_WAYS
def test_without_prefill_a_request_may_fail(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [503] * 9
        decode.begin.clear()
        async with router.http.post(TEXT, json=BODY) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
        decode.begin.set()
        assert len(decode.asked) == overlap
        assert (await router.post({"prompt": "short"}))[0] == 200

    talk(conversation, overlap=overlap, without_prefill="fail")


def test_no_prefill_node_at_all() -> None:
    async def main() -> None:
        decode = FakeNode("d0", "decode")
        async with running(decode) as router:
            assert (await router.post(BODY))[0] == 200
            assert await router.number('tries_total{way="no prefill"}') == 1

    asyncio.run(main())


def test_tries_are_bounded() -> None:
    async def main() -> None:
        decodes = [FakeNode(f"d{i}", "decode", statuses=[503] * 9) for i in range(5)]
        async with running(*decodes, max_tries=3) as router:
            assert (await router.post(BODY))[0] == 503
            assert sum(len(node.asked) for node in decodes) == 3

    asyncio.run(main())


def test_a_node_that_is_not_there() -> None:
    async def main() -> None:
        dead, alive = FakeNode("d0", "decode"), FakeNode("d1", "decode")
        async with running(dead, alive) as router:
            await dead.server.close()
            for _ in range(4):
                assert (await router.post(BODY))[0] == 200
            name = 'node_failures_total{node="d0",reason="lost",role="decode"}'
            assert await router.number(name) == 1  # then it comes last

    asyncio.run(main())


def test_the_only_node_is_asked_again_when_a_connection_is_lost() -> None:
    async def main() -> None:
        decode = FakeNode("d0", "decode", statuses=[0])
        async with running(decode) as router:
            assert (await router.post(BODY))[0] == 200
            assert len(decode.asked) == 2

    asyncio.run(main())


@BOTH_WAYS
def test_a_node_that_is_gone_is_not_waited_for(overlap: bool) -> None:
    async def main() -> None:
        prefill, first = pair()
        second = FakeNode("d1", "decode")
        async with running(prefill, first, second, overlap=overlap) as router:
            first.begin.clear()
            asking = asyncio.create_task(router.post(BODY))
            await until(lambda: first.asked)
            router.nodes.drop("d0", "a test")
            assert (await asking)[0] == 200
            assert len(second.asked) == 1

    asyncio.run(main())


@BOTH_WAYS
def test_a_wrong_request_is_wrong_at_once(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [400]
        if overlap:
            decode.begin.clear()
        status, answer = await router.post(BODY)
        assert (status, answer["error"]["message"]) == (400, "p0 says no")
        decode.begin.set()
        assert len(decode.asked) == overlap

    talk(conversation, overlap=overlap)


@BOTH_WAYS
def test_a_request_that_only_decode_refuses(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.statuses = [400]
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and decode.asked and router.requests("p0") == 0)
        decode.begin.set()
        status, answer = await asking
        assert (status, answer["error"]["message"]) == (400, "d0 says no")
        await until(lambda: prefill.released)

    talk(conversation, overlap=overlap)


def test_a_failure_of_decode_is_told() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.statuses = [500]
        assert (await router.post(BODY))[0] == 500
        assert len(decode.asked) == 1

    talk(conversation)


def test_nobody_there() -> None:
    async def main() -> None:
        async with running() as router:
            status, answer = await router.post(BODY)
            assert (status, answer["error"]["type"]) == (503, "overloaded_error")

    asyncio.run(main())


# -- after it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "gone", "shut"])
def test_a_stream_that_breaks_ends_with_an_error(how: str) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        if how == "cut":
            decode.cut_after = 2
        else:
            decode.go_on.clear()
        asking = asyncio.create_task(router.events(BODY))
        if how != "cut":
            while not await router.number("time_to_first_byte_seconds_count"):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        if how == "gone":
            router.nodes.drop("d0", "a test")
        elif how == "shut":
            router.api.completions.cut_off()
        *chunks, last = await asking
        decode.go_on.set()
        assert json.loads(last)["error"]["code"] == (503 if how == "shut" else 502)
        assert 1 <= len(chunks) < len(decode.says)
        assert len(decode.asked) == 1

    talk(conversation)


def test_a_stream_that_ends_without_its_end_has_failed() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.fails_after = 2
        *chunks, last = await router.events(BODY)
        assert json.loads(last) == {"error": {"message": "failed", "code": 500}}
        assert len(chunks) == 2

    talk(conversation)


# -- the client leaves -------------------------------------------------------------------------


@BOTH_WAYS
def test_a_client_that_leaves_while_prefill_computes(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.begin.clear()
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and (decode.asked or not overlap))
        asking.cancel()
        await until(lambda: prefill.num_cancelled == 1)
        await until(lambda: decode.num_cancelled == overlap)

    talk(conversation, overlap=overlap)


@BOTH_WAYS
def test_a_client_that_leaves_before_decode_answers_leaves_no_lease(overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and decode.asked and router.requests("p0") == 0)
        asking.cancel()
        await until(lambda: decode.num_cancelled == 1)
        await until(lambda: prefill.released == [by_name(prefill)])

    talk(conversation, overlap=overlap)


@BOTH_WAYS
def test_a_client_that_leaves_while_prefill_computes_leaves_no_lease(overlap: bool) -> None:
    """Its answer may be under way already, and name a lease."""

    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.begin.clear()
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.asked and (decode.asked or not overlap))
        asking.cancel()
        await until(lambda: prefill.released == [by_name(prefill)])

    talk(conversation, overlap=overlap)


# -- prefill's answer is lost ------------------------------------------------------------------


@BOTH_WAYS
def test_a_lease_whose_name_was_lost_is_released(overlap: bool) -> None:
    """A17: the connection breaks when prefill has computed."""

    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [0]
        if overlap:
            decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: prefill.released)
        decode.begin.set()
        assert (await asking)[0] == 200
        assert prefill.released[0] == by_name(prefill)

    talk(conversation, overlap=overlap)


@BOTH_WAYS
@pytest.mark.parametrize("status", [503, 400])
def test_what_prefill_has_refused_is_not_released(status: int, overlap: bool) -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.statuses = [status]
        if overlap:
            decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: router.requests("p0") == 0 and prefill.asked)
        decode.begin.set()
        await asking
        await router.api._cluster.releases.close()
        assert not prefill.released

    talk(conversation, overlap=overlap)


def test_a_release_that_does_not_get_through_is_said_again() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.loses_releases = 2
        decode.statuses = [400]
        await router.post(BODY)
        await until(lambda: prefill.released == [by_name(prefill)])

    talk(conversation)


def test_a_decode_node_that_answers_first_leaves_no_lease() -> None:
    """It had all of the prompt, and prefill computes on for nobody."""

    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        prefill.begin.clear()
        decode.reads_along = False
        assert (await router.post(BODY))[0] == 200
        await until(lambda: prefill.released == [by_name(prefill)])
        await until(lambda: prefill.num_cancelled == 1)

    talk(conversation)


def test_a_client_that_leaves_a_stream_ends_it() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.go_on.clear()
        response = await router.http.post(TEXT, json=BODY | {"stream": True})
        await response.content.readline()
        response.close()
        await until(lambda: decode.num_cancelled == 1)
        await until(lambda: not any(node.num_requests for node in router.nodes))
        assert await router.number('requests_total{status="499"}') == 1

    talk(conversation)


def test_a_storm_of_clients_that_leave() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        async def come_and_go(i: int) -> None:
            try:
                async with asyncio.timeout(0.001 * (i % 40)):
                    await router.post(BODY | {"stream": False})
            except TimeoutError:
                pass

        for _ in range(5):
            async with asyncio.TaskGroup() as tasks:
                for i in range(40):
                    tasks.create_task(come_and_go(i))
        await until(lambda: not any(node.num_requests for node in router.nodes))
        assert (await router.post(BODY))[0] == 200

    talk(conversation)


# -- the router ends ---------------------------------------------------------------------------


def test_a_drain_answers_what_is_open() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.go_on.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: decode.asked)
        router.api.completions.is_draining = True
        late, answer = await router.post(BODY)
        assert late == 503 and "draining" in answer["error"]["message"]
        async with router.http.get("/ready") as response:
            assert response.status == 503
        draining = asyncio.create_task(router.api.completions.drained())
        await asyncio.sleep(0.01)
        assert not draining.done()
        decode.go_on.set()
        await draining
        assert (await asking)[0] == 200

    talk(conversation)


def test_what_is_cut_off_before_its_first_byte_has_a_status() -> None:
    async def conversation(router: Running, prefill: FakeNode, decode: FakeNode) -> None:
        decode.begin.clear()
        asking = asyncio.create_task(router.post(BODY))
        await until(lambda: decode.asked)
        router.api.completions.cut_off()
        status, answer = await asking
        assert (status, answer["error"]["message"]) == (
            503,
            str(Unavailable("the router has ended")),
        )
        decode.begin.set()

    talk(conversation)
