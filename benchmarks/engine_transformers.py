"""transformers' own two ways to answer many: `generate`, and continuous batching.

Owns:   their settings, which are their defaults but where that is said.
Knows nothing of: works, other engines.
Source: transformers 5.19, generation/utils.py and generation/continuous_batching.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.engine_work import Answer, Ask, Step

#: Of K/V and of a batch: as much as kvdist has on a CPU. Left alone, it asks a GPU.
_KV_BYTES: Final = 1 << 30
_BATCH_TOKENS: Final = 2048
_PAGE: Final = 256
_PATIENCE_S: Final = 300.0


class Generate:
    """One padded batch, until the longest answer has ended; its cache lasts no longer."""

    def __init__(self, folder: str, dtype: str) -> None:
        self._model: Any = _load(folder, dtype)

    def describe(self) -> dict[str, str]:
        """Name and version."""
        return {"engine": "transformers generate", "version": transformers.__version__}

    def serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        """All of them in one batch."""
        longest = max(len(ask.prompt) for ask in wave)
        num_tokens = max(ask.num_tokens for ask in wave)
        ids = torch.zeros(len(wave), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        times: list[float] = []

        def note(so_far: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times.append(time.perf_counter() - began)
            return torch.zeros(len(wave), dtype=torch.bool)

        began = time.perf_counter()
        for row, ask in enumerate(wave):
            ids[row, longest - len(ask.prompt) :] = torch.tensor(ask.prompt)
            mask[row, longest - len(ask.prompt) :] = 1
        found = self._model.generate(
            ids,
            attention_mask=mask,
            generation_config=_greedy(num_tokens),
            stopping_criteria=[note],
        )
        return [
            Answer(tokens[: ask.num_tokens], times[: ask.num_tokens])
            for ask, tokens in zip(wave, found[:, longest:].tolist(), strict=True)
        ]

    def cpu_s(self) -> float:
        """Of this process."""
        return time.process_time()

    def take_steps(self) -> Sequence[Step]:
        """It doesn't tell."""
        return ()

    def close(self) -> None:
        """Nothing runs."""


class ContinuousBatching:
    """Its manager, with its thread."""

    def __init__(self, folder: str, dtype: str) -> None:
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        model: Any = _load(folder, dtype)
        config = model.config
        width = 2 * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
        self._manager = model.init_continuous_batching(
            generation_config=_greedy(1),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=_PAGE,
                num_blocks=_KV_BYTES // (_PAGE * width * config.num_hidden_layers),
                max_batch_tokens=_BATCH_TOKENS,
            ),
        )
        self._manager.start()

    def describe(self) -> dict[str, str]:
        """Name and version."""
        return {"engine": "transformers continuous", "version": transformers.__version__}

    def serve(self, wave: Sequence[Ask]) -> Sequence[Answer]:
        """All of them, begun together. Raises: RuntimeError if its thread ends."""
        began = time.perf_counter()
        names = [
            self._manager.add_request(
                ask.prompt,
                max_new_tokens=ask.num_tokens,
                record_timestamps=True,
                eos_token_id=-1,
            )
            for ask in wave
        ]
        found: dict[str, Any] = {}
        while len(found) < len(wave):
            result = self._manager.get_result(timeout=_PATIENCE_S)
            if result is None or result.error is not None:
                raise RuntimeError(f"continuous batching gave up: {result and result.error}")
            if result.is_finished():
                found[result.request_id] = result
        return [
            Answer(result.generated_tokens, [at - began for at in result.timestamps])
            for result in (found[name] for name in names)
        ]

    def cpu_s(self) -> float:
        """Of this process."""
        return time.process_time()

    def take_steps(self) -> Sequence[Step]:
        """It doesn't tell."""
        return ()

    def close(self) -> None:
        """Its thread has ended."""
        self._manager.stop(block=True)


def _load(folder: str, dtype: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(Path(folder), dtype=getattr(torch, dtype))
    model.generation_config = _greedy(1)
    return model.eval()


def _greedy(num_tokens: int) -> Any:
    """Nothing ends it early."""
    return GenerationConfig(
        max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
