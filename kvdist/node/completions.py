"""`/v1/completions` and `/v1/chat/completions`: from a request to an answer, whole or in pieces.

Owns:   nothing.
Knows nothing of: sockets beyond aiohttp's, steps.

A stream's status is sent with its first piece, so what fails before that says so by its status.
What fails later ends the stream with an error event, and without `[DONE]`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence as Listing
from contextlib import aclosing

import structlog
from aiohttp import web

from kvdist.cache import ExtraKeys
from kvdist.connector.params import Lend
from kvdist.errors import KvdistError, RequestTooLarge
from kvdist.node import answers
from kvdist.node.answers import ChatShape, Gathered, Json, Shape, TextShape
from kvdist.node.choice import Choice, Piece
from kvdist.node.defaults import SamplingDefaults
from kvdist.node.engine import Engine
from kvdist.node.handover import hand_over, wish
from kvdist.node.job import Job
from kvdist.node.models import Models
from kvdist.node.schema import ChatCompletionRequest, CompletionRequest, Generation
from kvdist.node.tokenizer import Tokenizer
from kvdist.web.events import EventStream
from kvdist.web.failures import error_body
from kvdist.web.reading import REQUEST_ID, read_body, status_of

_log = structlog.get_logger(__name__)

#: OpenAI's own, for completions.
_DEFAULT_MAX_TOKENS = 16
#: Longer texts are turned into tokens in a thread.
_LONG_TEXT = 4096


class Completions:
    """The handlers of both routes."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, models: Models, defaults: SamplingDefaults
    ) -> None:
        self._engine = engine
        self._defaults = defaults
        self._tokenizer = tokenizer
        self._models = models

    async def text(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        body = await read_body(request, CompletionRequest)
        model = self._models.check(body.model)
        special = body.add_special_tokens
        prompts = [await self._encode(one, add_special_tokens=special) for one in body.prompts]
        room = self._models.max_model_len - max(map(len, prompts))
        most = body.max_tokens or max(1, min(_DEFAULT_MAX_TOKENS, room))
        job = self._job(request, body, prompts, most, body.logprobs)
        name = f"cmpl-{request[REQUEST_ID]}"
        return await self._answer(
            request, body, job, TextShape(name, model, int(time.time()), self._tokenizer)
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = await read_body(request, ChatCompletionRequest)
        model = self._models.check(body.model)
        text = self._tokenizer.chat(
            [message.plain() for message in body.messages],
            add_generation_prompt=body.add_generation_prompt,
            more=body.chat_template_kwargs or {},
        )
        prompt = await self._encode(text, add_special_tokens=False)
        most = body.max_completion_tokens or body.max_tokens
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        room = max(1, self._models.max_model_len - len(prompt))
        job = self._job(request, body, [prompt], most or room, num_logprobs)
        name = f"chatcmpl-{request[REQUEST_ID]}"
        return await self._answer(
            request, body, job, ChatShape(name, model, int(time.time()), self._tokenizer)
        )

    # -- asking --------------------------------------------------------------------------------

    async def _encode(self, prompt: str | list[int], *, add_special_tokens: bool) -> list[int]:
        """The prompt's tokens. Raises: InvalidRequest for one that the model doesn't know."""
        encode = self._tokenizer.encode
        if isinstance(prompt, list):
            tokens = prompt
        elif len(prompt) < _LONG_TEXT:
            tokens = encode(prompt, add_special_tokens=add_special_tokens)
        else:
            tokens = await asyncio.to_thread(encode, prompt, add_special_tokens=add_special_tokens)
        self._tokenizer.check(tokens)
        return tokens

    def _job(
        self,
        request: web.Request,
        body: Generation,
        prompts: Listing[list[int]],
        max_new_tokens: int,
        num_logprobs: int | None,
    ) -> Job:
        longest, room = max(map(len, prompts)), self._models.max_model_len
        if longest + max_new_tokens > room:
            raise RequestTooLarge(
                f"this model's longest sequence is {room} tokens, and {longest} of the prompt with "
                f"{max_new_tokens} of the completion are {longest + max_new_tokens}"
            )
        is_whole = not body.stream and (body.n or 1) == 1
        wished = wish(self._engine, body.kv_transfer_params, prompts, is_whole=is_whole)
        return Job(
            request[REQUEST_ID],
            prompts,
            body.params(
                max_new_tokens, self._tokenizer.eos_token_ids, num_logprobs, self._defaults
            ),
            time.monotonic(),
            priority=body.priority,
            extra_keys=ExtraKeys(cache_salt=body.cache_salt),
            kv_transfer_params=body.kv_transfer_params,
            is_prefill=isinstance(wished, Lend),
            is_streamed=isinstance(wished, Lend) and wished.has_reader_along,
        )

    # -- answering -----------------------------------------------------------------------------

    async def _answer(
        self, request: web.Request, body: Generation, job: Job, shape: Shape
    ) -> web.StreamResponse:
        choices = [
            Choice(
                i,
                self._tokenizer,
                body.stop_strings,
                include_stop=body.include_stop_str_in_output,
                skip_special_tokens=body.skip_special_tokens,
            )
            for i in range(job.num_choices)
        ]
        async with aclosing(self._pieces(job, choices)) as pieces:
            if body.stream:
                return await _Stream(body, job, choices, shape).send(request, pieces)
            gathered = [Gathered() for _ in choices]
            async for piece in pieces:
                gathered[piece.index].add(piece)
            whole = shape.whole(gathered, _usage(job, choices))
        if job.is_prefill:
            return await hand_over(request, self._engine, job, whole)
        return web.json_response(whole)

    async def _pieces(self, job: Job, choices: list[Choice]) -> AsyncGenerator[Piece]:
        """All pieces of all choices, as they come. Raises: what `Engine.generate` does."""
        async with aclosing(self._engine.generate(job)) as news:
            async for item in news:
                choice = choices[item.index]
                if choice.ended:
                    continue  # the scheduler's last word on what has met a stop string
                piece = choice.feed(item.output)
                if piece.finish_reason and not item.output.status.finished:
                    self._engine.stop(job, item.index)
                yield piece


class _Stream:
    """Server-sent events of one answer."""

    def __init__(self, body: Generation, job: Job, choices: Listing[Choice], shape: Shape) -> None:
        options = body.stream_options
        self._job, self._choices, self._shape = job, choices, shape
        self._tells_usage = options is not None and options.include_usage
        self._tells_always = options is not None and options.continuous_usage_stats

    async def send(self, request: web.Request, pieces: AsyncGenerator[Piece]) -> web.StreamResponse:
        """Nothing goes out before the first piece is there. Raises: what comes before that."""
        piece = await anext(pieces)
        events = await EventStream.begin(request)
        try:
            for chunk in self._shape.first_chunks(len(self._choices)):
                await events.send(chunk)
            await self._piece(events, piece)
            async for piece in pieces:
                await self._piece(events, piece)
        except KvdistError as error:
            _log.warning("stream failed", reason=str(error))
            await events.send(error_body(status_of(error), str(error)))
            return await events.end()
        if self._tells_usage:
            await events.send(self._shape.last_chunk(_usage(self._job, self._choices)))
        return await events.end(done=True)

    async def _piece(self, events: EventStream, piece: Piece) -> None:
        usage = _usage(self._job, self._choices) if self._tells_always else None
        await events.send(self._shape.chunk(piece, usage))


def _usage(job: Job, choices: Listing[Choice]) -> Json:
    num_output_tokens = sum(choice.num_tokens for choice in choices)
    return answers.usage(
        job.num_prompt_tokens,
        sum(job.num_cached_tokens),
        sum(job.num_remote_tokens),
        num_output_tokens,
    )
