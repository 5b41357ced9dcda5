"""The models that pairs are asked with, and what transformers' `generate` says of each.

Owns:   the folders of the tiny ones.
Knows nothing of: nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from kvdist.worker.default_model import NAME, default_model
from tests.pairs.work import NUM_STREAMS
from tests.worker.tiny import FAMILIES, Continuation, continuation, generated, network, stream

#: Each family by random weights, and the real default model.
MODELS: Final = (*FAMILIES, NAME)
#: Text for the real one.
_TEXT: Final = Path(__file__).parents[2] / "docs" / "protocol.md"
_STREAM: Final = 300


@dataclass(frozen=True, slots=True)
class Subject:
    """A model."""

    folder: Path
    #: Tokens to take prompts from, by number.
    stream: Callable[[int], tuple[int, ...]]
    #: What follows on a prompt, so many tokens.
    continuation: Callable[[tuple[int, ...], int], Continuation]


def subject(model: str, folders: Path) -> Subject:
    """Of that name. `folders`: where tiny models are put."""
    if model == NAME:
        return Subject(_real_folder(), _real_stream, _real_continuation)
    return Subject(folder_of(model, folders), stream, partial(continuation, model))


def folder_of(family: str, folders: Path) -> Path:
    """The weights of a tiny model, written if they aren't there."""
    folder = folders / family
    if not folder.exists():
        disable_progress_bar()  # it leaves a thread behind
        network(family).save_pretrained(folder)
    return folder


@cache
def _real_folder() -> Path:
    return default_model(lambda _what, _share: None)


@cache
def _real_stream(number: int) -> tuple[int, ...]:
    tokenizer = AutoTokenizer.from_pretrained(_real_folder())
    tokens = tokenizer(_TEXT.read_text())["input_ids"]
    begin = number * ((len(tokens) - _STREAM) // NUM_STREAMS)
    return tuple(tokens[begin : begin + _STREAM])


@cache
def _real_network() -> Any:
    return AutoModelForCausalLM.from_pretrained(_real_folder(), dtype=torch.float32).eval()


@cache
def _real_continuation(prompt: tuple[int, ...], num_tokens: int) -> Continuation:
    return generated(_real_network(), prompt, num_tokens)
