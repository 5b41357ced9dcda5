"""`/v1/audio/transcriptions` and `/v1/audio/translations`: what is said in an audio file.

Owns:   nothing.
Knows nothing of: how files are read (`sound`), what a model's decoder is told (`speech`).

Sound that is longer than the model's window is several prompts of one job; their texts come in
order, whichever ends first.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import ceil
from typing import IO

import structlog
from aiohttp import web

from kvdist.connector.params import Lend, read_params
from kvdist.errors import InvalidRequest, KvdistError
from kvdist.node.choice import Choice
from kvdist.node.engine import Engine
from kvdist.node.handover import hand_over, wish
from kvdist.node.job import Job
from kvdist.node.models import Models
from kvdist.node.schema import TranscriptionRequest
from kvdist.node.sound import windows
from kvdist.node.speech import Speech, Task
from kvdist.node.tokenizer import Tokenizer
from kvdist.sched.audio import BYTES_PER_SAMPLE, Audio
from kvdist.web.events import EventStream
from kvdist.web.failures import error_body
from kvdist.web.reading import REQUEST_ID, read_form, status_of

_log = structlog.get_logger(__name__)


class Transcriptions:
    """The handlers of both routes."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, models: Models, speech: Speech
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._models = models
        self._speech = speech

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/audio/transcriptions`."""
        return await self._answer(request, "transcribe")

    async def translate(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/audio/translations`: into English."""
        return await self._answer(request, "translate")

    async def _answer(self, request: web.Request, task: Task) -> web.StreamResponse:
        job, body = await self._job(request, task)
        seconds = ceil(
            sum(len(audio.samples) for audio in job.audio)
            / (BYTES_PER_SAMPLE * self._speech.window.sample_rate)
        )
        usage = {"type": "duration", "seconds": seconds}
        if job.is_prefill and len(job.prompts) > 1:
            return web.json_response({"text": "", "usage": usage, "kv_transfer_params": None})
        async with aclosing(self._texts(job)) as texts:
            if body.stream:
                return await _stream(request, texts, usage)
            text = "".join([text async for text in texts])
        if job.is_prefill:
            return await hand_over(request, self._engine, job, {"text": text, "usage": usage})
        if body.response_format == "text":
            return web.Response(text=f"{text}\n")
        return web.json_response({"text": text, "usage": usage})

    async def _job(self, request: web.Request, task: Task) -> tuple[Job, TranscriptionRequest]:
        async with read_form(request, TranscriptionRequest, "file") as (body, file):
            return await self._heard(request, task, body, file), body

    async def _heard(
        self, request: web.Request, task: Task, body: TranscriptionRequest, file: IO[bytes]
    ) -> Job:
        self._models.check(body.model)
        room = self._models.max_model_len
        prompt = self._speech.prompt(
            self._tokenizer, task, body.language, body.prompt, room // 2 - 1
        )
        if (left := room - len(prompt)) < 1:
            raise InvalidRequest(f"sequences have {room} tokens, and none is left for an answer")
        heard = await asyncio.to_thread(windows, file, self._speech.window)
        num_tokens, prompts = self._speech.window.num_tokens, [prompt] * len(heard)
        params = body.kv_transfer_params
        is_prefill = isinstance(read_params(params), Lend)
        asked = prompts[:1] if is_prefill else prompts  # of more windows nothing is handed over
        wish(self._engine, params, asked, is_whole=not body.stream)
        return Job(
            request[REQUEST_ID],
            prompts,
            body.params(
                min(body.max_completion_tokens or left, left), self._tokenizer.eos_token_ids
            ),
            time.monotonic(),
            audio=[Audio(samples, num_tokens) for samples in heard],
            kv_transfer_params=params,
            is_prefill=is_prefill,
        )

    async def _texts(self, job: Job) -> AsyncGenerator[str]:
        """The text, piece by piece, without space around it. Raises: as `Engine.generate`."""
        choices = [
            Choice(i, self._tokenizer, [], include_stop=False, skip_special_tokens=True)
            for i in range(job.num_choices)
        ]
        waiting = [""] * len(choices)
        turn, space, begun = 0, "", False
        async with aclosing(self._engine.generate(job)) as news:
            async for item in news:
                waiting[item.index] += choices[item.index].feed(item.output).text
                while turn < len(choices):
                    text, waiting[turn] = space + waiting[turn], ""
                    said = text.rstrip()
                    space = text[len(said) :]
                    if said:
                        yield said if begun else said.lstrip()
                        begun = True
                    if not choices[turn].ended:
                        break
                    turn += 1


async def _stream(
    request: web.Request, texts: AsyncGenerator[str], usage: dict[str, object]
) -> web.StreamResponse:
    """Nothing goes out before the first text is there. Raises: what comes before that."""
    first = await anext(texts, "")
    events = await EventStream.begin(request)
    whole = [first]
    try:
        await events.send({"type": "transcript.text.delta", "delta": first})
        async for text in texts:
            whole.append(text)
            await events.send({"type": "transcript.text.delta", "delta": text})
    except KvdistError as error:
        _log.warning("stream failed", reason=str(error))
        await events.send(error_body(status_of(error), str(error)))
        return await events.end()
    await events.send({"type": "transcript.text.done", "text": "".join(whole), "usage": usage})
    return await events.end(done=True)
