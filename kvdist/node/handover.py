"""Between nodes: what a request asks of the connector, and the answer that has a ticket.

Owns:   nothing.
Knows nothing of: what is asked for beside that; whether the answer is text or what was heard.
"""

from collections.abc import Mapping, Sequence as Listing
from typing import Any

from aiohttp import web

from kvdist.connector.params import Lend, Source, read_params, write_params
from kvdist.node.answers import Json
from kvdist.node.engine import Engine
from kvdist.node.job import Job
from kvdist.web.reading import REQUEST_ID, BadField

_FIELD = "kv_transfer_params"


def wish(
    engine: Engine,
    params: Mapping[str, Any] | None,
    prompts: Listing[Listing[int]],
    *,
    is_whole: bool,
) -> Source | Lend | None:
    """What is asked of the connector; `is_whole`: one answer, not streamed.

    Raises: InvalidRequest; Unavailable.
    """
    found = read_params(params)
    if found is None:
        return None
    if engine.exchange is None:
        raise BadField("this node exchanges no K/V with others (it has no --role)", _FIELD)
    if len(prompts) > 1:
        raise BadField("K/V are exchanged for one prompt a request", _FIELD)
    if isinstance(found, Lend):
        if not is_whole:
            raise BadField("a prefill is one, and no stream", _FIELD)
        engine.exchange.check_room(len(prompts[0]))
    return found


async def hand_over(
    request: web.Request, engine: Engine, job: Job, whole: Json
) -> web.StreamResponse:
    """An answer with a ticket. Of one that can't be written, nobody knows the lease."""
    ticket = await engine.ticket(job)
    whole[_FIELD] = None if ticket is None else write_params(ticket)
    response = web.json_response(whole, headers={"X-Request-Id": request[REQUEST_ID]})
    try:
        await response.prepare(request)
        await response.write_eof()
    except BaseException:
        if ticket is not None:
            engine.give_back(ticket)
        raise
    return response
