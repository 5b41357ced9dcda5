"""Small models are faster in one thread; a progress bar would leave one behind."""

from collections.abc import Iterator

import pytest
import torch
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
