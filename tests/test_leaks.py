"""The leak check sees each kind of thing that a test can leave behind."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import leaks

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


def test_a_clean_block_passes() -> None:
    with leaks.watch():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        asyncio.run(asyncio.sleep(0))
        subprocess.run([sys.executable, "-c", ""], check=True)
        Path(__file__).read_text()


def test_a_thread() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="lost")
    with pytest.raises(AssertionError, match="thread lost"), leaks.watch():
        thread.start()
    end.set()
    thread.join()


@needs_proc
def test_an_open_file() -> None:
    with pytest.raises(AssertionError, match=r"open file .*test_leaks\.py"), leaks.watch():
        file = Path(__file__).open()  # noqa: SIM115
    file.close()


@needs_proc
def test_a_child_process() -> None:
    with pytest.raises(AssertionError, match="child process"), leaks.watch():
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.communicate()


def test_a_task_that_asyncio_run_would_hide() -> None:
    tasks = []

    async def lose_one() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(60), name="lost"))

    with pytest.raises(AssertionError, match="task lost"), leaks.watch():
        asyncio.run(lose_one())
    assert tasks[0].cancelled()


def test_a_loop() -> None:
    with pytest.raises(AssertionError, match="running=False closed=False"), leaks.watch():
        loop = asyncio.events.new_event_loop()
    loop.close()


def test_the_block_s_own_error_comes_first() -> None:
    with pytest.raises(ValueError, match="no number"), leaks.watch():
        int("no number")
