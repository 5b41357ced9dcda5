"""What an encoder has heard, pulled over real links: a pair says what `generate` says."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvdist.errors import GenerationFailed, InvalidRequest
from kvdist.node.job import Job
from kvdist.sched.audio import Audio
from tests.links.pairs import TRANSPORTS, Book, Node, a_job, a_node, a_pair
from tests.worker.tiny import Comparison, stream
from tests.worker.tiny_whisper import NUM_HEARD, NUM_TOKENS, sound, transcript, whisper

#: Prompts of the decoder, and what is heard: as long as real ones, at the end of a block, behind.
WORK = [(stream(0)[:length], heard) for heard, length in enumerate((2, 4, 17, 18, 40))]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "whisper"
    whisper().save_pretrained(folder)
    return folder


@asynccontextmanager
async def pair(
    folder: Path, transport: str = "shm", **settings: Any
) -> AsyncIterator[tuple[Node, Node]]:
    told = {"model": str(folder), "max_model_len": 64, "num_blocks": 120, **settings}
    async with a_pair(transport, **told) as (prefill, decode):
        yield prefill, decode
        await prefill.rest()
        await decode.rest()


def encodings(node: Node) -> list[object]:
    """Grows by one each time that node's encoder runs."""
    found: list[object] = []
    encoder = node.engine._worker._runner.model.network.model.encoder  # type: ignore[attr-defined]
    encoder.register_forward_pre_hook(lambda _, given: found.append(given))
    return found


def a_hearing_job(
    prompt: Sequence[int], heard: Audio, params: Mapping[str, Any] | None = None
) -> Job:
    job = a_job(prompt, NUM_TOKENS, params)
    job.audio = [heard]
    return job


async def said(node: Node, job: Job) -> list[int]:
    (tokens,) = await node.tokens(job)
    return tokens


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pair_says_what_was_heard_and_hears_it_once(folder: Path, transport: str) -> None:
    async def main() -> None:
        comparison = Comparison()
        async with pair(folder, transport) as (prefill, decode):
            there, here = encodings(prefill), encodings(decode)

            async def one(prompt: tuple[int, ...], heard: int) -> None:
                params = await prefill.prefill(prompt, audio=sound(heard))
                job = a_hearing_job(prompt, sound(heard), params)
                comparison.add(transcript(heard, prompt), await said(decode, job))
                assert job.num_remote_tokens == [len(prompt) - 1]

            for work in WORK:
                await one(*work)
            await asyncio.gather(*(one(*work) for work in WORK))
            assert (len(there), len(here)) == (2 * len(WORK), 0)
        comparison.check_share()

    asyncio.run(main())


def test_a_ticket_for_another_sound_brings_nothing(folder: Path) -> None:
    """The same tokens, and no byte of what was heard there."""

    async def main() -> None:
        prompt = WORK[1][0]
        async with pair(folder) as (prefill, decode):
            here = encodings(decode)
            params = await prefill.prefill(prompt, audio=sound(1))
            job = a_hearing_job(prompt, sound(2), params)
            assert tuple(await said(decode, job)) == transcript(2, prompt).tokens
            assert (job.num_remote_tokens, len(here)) == ([0], 1)

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_does_not_come_is_heard_here_or_fails(folder: Path, policy: str) -> None:
    async def main() -> None:
        prompt = WORK[1][0]
        async with pair(folder, on_failure=policy) as (prefill, decode):
            here = encodings(decode)
            params = await prefill.prefill(prompt, audio=sound(1))
            prefill.exchange.half.take_back()
            prefill.exchange.carry_out()
            job = a_hearing_job(prompt, sound(1), params)
            if policy == "fail":
                with pytest.raises(GenerationFailed):
                    await said(decode, job)
            else:
                assert tuple(await said(decode, job)) == transcript(1, prompt).tokens
            assert len(here) == (policy == "recompute")

    asyncio.run(main())


def test_bytes_that_go_wrong_are_heard_anew(folder: Path) -> None:
    async def main() -> None:
        prompt = WORK[2][0]
        async with pair(folder, "tcp", faults="1:cut-inside=1") as (prefill, decode):
            params = await prefill.prefill(prompt, audio=sound(3))
            job = a_hearing_job(prompt, sound(3), params)
            assert tuple(await said(decode, job)) == transcript(3, prompt).tokens
            assert job.num_remote_tokens == [0]

    asyncio.run(main())


def test_who_is_preempted_after_a_load_hears_by_itself(folder: Path) -> None:
    """A pool too small for two: what was loaded for one goes, and is computed here."""

    async def main() -> None:
        comparison, book = Comparison(), Book()
        told: dict[str, Any] = {"model": str(folder), "max_model_len": 56, "block_size": 8}
        async with (
            a_node("p0", book, "shm", num_blocks=120, **told) as prefill,
            a_node("d0", book, "shm", num_blocks=22, **told) as decode,
        ):
            here = encodings(decode)

            async def one(prompt: tuple[int, ...], heard: int) -> None:
                params = await prefill.prefill(prompt, audio=sound(heard))
                job = a_hearing_job(prompt, sound(heard), params)
                comparison.add(transcript(heard, prompt), await said(decode, job))

            work = [(stream(0)[:15], heard) for heard in range(3)]
            await asyncio.gather(*(one(*some) for some in work))
            assert len(here) == decode.engine.scheduler.stats.num_preemptions > 0
        comparison.check_share()

    asyncio.run(main())


def test_sound_for_an_encoder_of_another_length(folder: Path) -> None:
    async def main() -> None:
        async with pair(folder) as (prefill, _):
            for heard in (Audio(sound(0).samples, NUM_HEARD - 1), None):
                job = a_job(WORK[0][0], NUM_TOKENS)
                job.audio = [] if heard is None else [heard]
                with pytest.raises(InvalidRequest, match="encoder"):
                    await said(prefill, job)

    asyncio.run(main())
