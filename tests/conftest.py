"""For every test: check level 2, a leak check at its end, examples that can be replayed."""

import gc
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import settings

from kvdist import check
from tests import leaks

#: Read once, when torch is loaded: threads that spin while they wait keep others from their work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

check.level = 2  # here and not in a fixture, so that doctests have it too

#: The same examples in every run; `--hypothesis-profile=long` looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if option.hypothesis_profile == "long" and option.hypothesis_seed is None:
        option.hypothesis_seed = str(random.randrange(1 << 32))


def pytest_report_header(config: pytest.Config) -> str:
    profile = config.option.hypothesis_profile or "ci"
    seed = config.option.hypothesis_seed or "none, the same examples always"
    return f"check level: {check.level}, hypothesis profile: {profile}, seed: {seed}"


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """What lives by now stays, and needn't be looked through by each collection from here on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    with leaks.watch():
        yield
