"""A file with sound: what is made of its form for each node, and that it can be sent again."""

import asyncio
from typing import Any

import pytest
from aiohttp import FormData

from tests.router.fake import SOUND, Running, pair, running

FILE = bytes(range(256)) * 4


async def post(router: Running, **fields: str) -> tuple[int, Any]:
    form = FormData()
    form.add_field("file", FILE, filename="a.wav")
    for name, value in fields.items():
        form.add_field(name, value)
    async with router.http.post(SOUND, data=form) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("overlap", [True, False])
def test_both_get_the_file_and_decode_the_ticket_too(*, overlap: bool) -> None:
    async def main() -> None:
        prefill, decode = pair()
        async with running(prefill, decode, overlap=overlap) as router:
            told = {"model": "tiny", "language": "de", "x[]": "y"}
            more = {"stream": "true", "response_format": "text"}
            form = FormData()
            for name, value in (told | more).items():
                form.add_field(name, value)
            form.add_field("file", FILE, filename="a.wav")
            async with router.http.post(SOUND, data=form) as response:
                assert response.status == 200
            (first,), (second,) = prefill.asked, decode.asked
            params = first.pop("kv_transfer_params")
            assert params["do_remote_decode"] and params["kvdist"]["read_along"] is False
            short = {"stream": "false", "response_format": "json"}
            assert first == told | short | {"file": FILE}
            assert second == told | more | {"file": FILE, "kv_transfer_params": prefill.ticket}

    asyncio.run(main())


def test_another_try_has_the_whole_file_again() -> None:
    async def main() -> None:
        prefill, decode = pair(statuses=[0])
        async with running(prefill, decode) as router:
            status, body = await post(router)
            assert (status, body["choices"][0]["text"]) == (200, "one two three")
            assert [asked["file"] for asked in prefill.asked + decode.asked] == [FILE] * 4

    asyncio.run(main())


def test_where_nothing_was_computed_the_other_does_it_alone() -> None:
    async def main() -> None:
        prefill, decode = pair()
        prefill.ticket = None
        async with running(prefill, decode) as router:
            assert (await post(router))[0] == 200
            assert decode.asked == [{"file": FILE}]

    asyncio.run(main())


def test_a_form_that_is_none() -> None:
    async def main() -> None:
        async with running(*pair()) as router:
            assert (await router.post({"model": "tiny"}, SOUND))[0] == 400
            assert (await post(router, kv_transfer_params="{"))[0] == 400

    asyncio.run(main())
