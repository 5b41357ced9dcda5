"""What is said in an audio file, over HTTP, with a small random Whisper that hears a second."""

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import FormData
from openai import BadRequestError
from transformers import WhisperForConditionalGeneration

from kvdist.cli.runners import build_runner, speech_of, tokenizer_of
from kvdist.errors import ConfigError, InvalidRequest
from kvdist.node.build import NodeSettings, build_engine
from kvdist.node.in_process import InProcessWorker
from kvdist.node.sound import windows
from kvdist.node.speech import Speech
from kvdist.sched.audio import Audio
from kvdist.worker.hearing import Hearing
from kvdist.worker.settings import WorkerSettings
from tests.node.running import TOKENIZER, Running, running, until
from tests.node.test_sound import written
from tests.worker.tiny_whisper import RATE, sound, whisper

Talk = Callable[[Running], Awaitable[None]]

PATH = "/v1/audio/transcriptions"
END, PREVIOUSLY, NO_TIMESTAMPS = 499, 504, 510
TOLD = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 500, "<|de|>": 501},
    "task_to_id": {"transcribe": 502, "translate": 503},
    "prev_sot_token_id": PREVIOUSLY,
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "eos_token_id": END,
    "suppress_tokens": [367, *range(END + 1, 512)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, as the hub has them."""
    folder = tmp_path_factory.mktemp("models") / "whisper"
    whisper().save_pretrained(folder)
    Hearing.of(whisper().config).extractor.save_pretrained(folder)
    TOKENIZER._vocabulary.save(str(folder / "tokenizer.json"))
    path = folder / "generation_config.json"
    told = json.loads(path.read_text()) | TOLD
    told.pop("_from_model_config", None)  # such a one has no fields of its own
    path.write_text(json.dumps(told))
    return folder


def file(number: int) -> io.BytesIO:
    """One of the sounds of the worker's tests, as a file."""
    return written(np.frombuffer(sound(number).samples, "<f4"))


@cache
def reference(folder: Path) -> Any:
    return WhisperForConditionalGeneration.from_pretrained(folder)


def expected(folder: Path, audio: Audio, num_tokens: int = 20, **settings: Any) -> str:
    """What transformers' own `generate` writes down: it knows which tokens come first."""
    model = reference(folder)
    made = model.generate(
        input_features=Hearing.of(model.config).features(audio),
        max_new_tokens=num_tokens,
        do_sample=False,
        **{"language": "en", "task": "transcribe", **settings},
    )
    return TOKENIZER.decode(made[0].tolist()).strip()


def talk(folder: Path, conversation: Talk, **settings: Any) -> None:
    async def main() -> None:
        told = WorkerSettings(model=str(folder), device="cpu", dtype="float32", num_blocks=200)
        runner, capacity = build_runner(told, lambda what, share: None)
        node_settings = NodeSettings(names=("tiny",), **settings)
        engine = build_engine(node_settings, capacity, worker := InProcessWorker(runner))
        async with running(
            engine=engine,
            worker=worker,
            tokenizer=tokenizer_of(capacity),
            speech=speech_of(capacity),
            **settings,
        ) as node:
            await conversation(node)
            node.assert_nothing_held()

    asyncio.run(main())


async def post(node: Running, data: Any, path: str = PATH, **fields: str) -> tuple[int, Any]:
    form = FormData()
    form.add_field("file", data, filename="x.wav")
    for name, value in {"max_completion_tokens": "20", **fields}.items():
        form.add_field(name, value)
    async with node.http.post(path, data=form) as response:
        text = await response.text()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(text) if is_json else text


def test_it_writes_down_what_generate_does(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(post(node, file(number))) for number in range(5)]
        for number, answer in enumerate(answers):
            status, body = answer.result()
            assert (status, body["text"]) == (200, expected(folder, sound(number)))
            assert body["usage"] == {"type": "duration", "seconds": 1}

    talk(folder, conversation)


def test_languages_tasks_and_prompts_come_first(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        texts = {expected(folder, sound(1))}
        for fields, told in (
            ({"language": "de"}, {"language": "de"}),
            ({"prompt": " once upon "}, {"prompt_ids": torch.tensor(before(" once upon"))}),
        ):
            text = expected(folder, sound(1), **told)
            assert await post(node, file(1), response_format="text", **fields) == (200, f"{text}\n")
            texts.add(text)
        text = expected(folder, sound(1), task="translate")
        path = "/v1/audio/translations"
        assert await post(node, file(1), path, response_format="text") == (200, f"{text}\n")
        texts.add(text)
        assert len(texts) == 4

    talk(folder, conversation)


def before(text: str) -> list[int]:
    return [PREVIOUSLY, *TOKENIZER.encode(text)]


def test_the_openai_sdk_hears_it_whole_and_in_pieces(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        ask: Any = node.openai.audio.transcriptions.create
        told: Any = {"model": "tiny", "extra_body": {"max_completion_tokens": 20}}
        whole = await ask(file=("x.wav", file(0)), **told)
        assert whole.text == expected(folder, sound(0))
        events = [event async for event in await ask(file=("x.wav", file(0)), stream=True, **told)]
        deltas = [event.delta for event in events[:-1]]
        assert "".join(deltas) == events[-1].text == whole.text
        assert {event.type for event in events[:-1]} == {"transcript.text.delta"}
        assert events[-1].type == "transcript.text.done" and len(deltas) > 1

    talk(folder, conversation)


def test_long_sound_is_heard_window_by_window(folder: Path) -> None:
    samples = np.concatenate([np.frombuffer(sound(n).samples, "<f4") for n in range(4)])
    speech = Speech.from_folder(folder, Hearing.of(whisper().config).window)
    parts = windows(written(samples), speech.window)
    assert len(parts) == 3

    async def conversation(node: Running) -> None:
        status, body = await post(node, written(samples))
        texts = [expected(folder, Audio(part, 50)) for part in parts]
        assert status == 200 and body["usage"]["seconds"] == -(-len(samples) // RATE)
        assert body["text"].replace(" ", "") == "".join(texts).replace(" ", "")

    talk(folder, conversation, max_num_seqs=2)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"language": "xx"}, None),
        ({"response_format": "srt"}, "response_format"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"seed": "x"}, "seed"),
        ({"timestamp_granularities[]": "word"}, None),
        ({"max_completion_tokens": "0"}, "max_completion_tokens"),
    ],
)
def test_fields_that_can_not_be(folder: Path, fields: dict[str, str], param: str | None) -> None:
    async def conversation(node: Running) -> None:
        status, body = await post(node, file(0), **fields)
        assert (status, body["error"]["param"]) == (400, param)

    talk(folder, conversation)


def test_bodies_that_can_not_be(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        assert (await post(node, b"no sound at all"))[0] == 400
        assert (await post(node, b""))[0] == 400
        assert (await post(node, file(0), model="other"))[0] == 404
        status, body = await node.post(PATH, {"model": "tiny"})
        assert status == 400 and "multipart/form-data" in body["error"]["message"]
        for kind, data in (
            ("multipart/form-data", b"x"),
            ("multipart/form-data; boundary=b", b""),
            ("multipart/form-data; boundary=b", b"--b\r\nrubbish"),
            (
                "multipart/form-data; boundary=b",
                b"--b\r\nContent-Transfer-Encoding: x\r\n\r\ntext\r\n--b--\r\n",
            ),
            (
                "multipart/form-data; boundary=b",
                b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\ntext\r\n--b--\r\n',
            ),
        ):
            headers = {"Content-Type": kind}
            async with node.http.post(PATH, data=data, headers=headers) as response:
                assert response.status == 400, await response.text()
                assert (await response.json())["error"]["type"] == "invalid_request_error"

    talk(folder, conversation)


def test_a_body_that_is_too_large(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        assert (await post(node, bytes(100_000)))[0] == 413

    talk(folder, conversation, max_body_bytes=50_000)


def test_who_leaves_is_forgotten(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        asking = asyncio.create_task(post(node, file(0), max_completion_tokens="100"))
        await until(lambda: node.engine.scheduler.roster.running)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: node.engine.scheduler.idle)
        assert (await post(node, file(1)))[1]["text"] == expected(folder, sound(1))

    talk(folder, conversation)


def test_other_routes_say_where_to_ask(folder: Path) -> None:
    async def conversation(node: Running) -> None:
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, body = await node.post(path, {"prompt": "x"})
            assert status == 400 and "/v1/audio/transcriptions" in body["error"]["message"]

    async def main() -> None:
        async with running() as node:
            with pytest.raises(BadRequestError, match="doesn't hear: ask /v1/completions"):
                await node.openai.audio.transcriptions.create(model="tiny", file=("x", file(0)))

    talk(folder, conversation)
    asyncio.run(main())


def test_without_the_libraries_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvdist.node.transcriptions", raising=False)
    monkeypatch.delitem(sys.modules, "kvdist.node.sound", raising=False)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ConfigError, match="extra 'serve'"):
        talk(folder, _nothing)


async def _nothing(node: Running) -> None:
    raise AssertionError("it should not begin")


# -- what comes first ----------------------------------------------------------------------------

WINDOW = Hearing.of(whisper().config).window


def test_an_english_model_writes_down_english(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"decoder_start_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"no_timestamps_token_id": 9}))
    speech = Speech.from_folder(tmp_path, WINDOW)
    assert speech.prompt(TOKENIZER, "transcribe", "en", None, 9) == [7, 9]
    for task, language, text in (
        ("transcribe", "de", None),
        ("translate", None, None),
        ("transcribe", None, "before"),
    ):
        with pytest.raises(InvalidRequest):
            speech.prompt(TOKENIZER, task, language, text, 9)  # type: ignore[arg-type]


def test_of_what_was_said_before_the_last_counts(folder: Path) -> None:
    speech = Speech.from_folder(folder, WINDOW)
    tokens = speech.prompt(TOKENIZER, "transcribe", "EN", " abcdef ", 3)
    assert tokens == [PREVIOUSLY, *TOKENIZER.encode("def"), 3, 500, 502, NO_TIMESTAMPS]
    assert speech.prompt(TOKENIZER, "transcribe", None, "  ", 3) == tokens[4:]


def test_a_model_that_does_not_say_how_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="starts"):
        Speech.from_folder(tmp_path, WINDOW)
