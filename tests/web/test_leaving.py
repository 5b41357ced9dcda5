"""Clients that leave while they are answered: no failure of ours."""

import asyncio
import logging

import pytest
from aiohttp import ClientError, web
from aiohttp.test_utils import TestClient, TestServer

from kvdist.web.middleware import named, shaped


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_stream_that_nobody_hears(caplog: pytest.LogCaptureFixture, is_gone: bool) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        if is_gone:
            request.transport.abort()  # what is written now fails before anybody is cancelled
        await response.write(b"more")
        raise ConnectionRefusedError("of something else")

    async def main() -> None:
        app = web.Application(middlewares=[named, shaped])
        app.router.add_get("/", stream)
        async with TestClient(TestServer(app)) as client:
            with pytest.raises(ClientError):
                await (await client.get("/")).read()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert bool(caplog.records) is not is_gone
