"""A mapping has a descriptor of its own, and lives as long as anybody's view of it."""

import gc
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    """What threads that end and cycles keep goes before open files are counted."""
    yield
    for thread in threading.enumerate():
        if thread.name == "links":
            thread.join(5)
    gc.collect()
