"""`kvdist up` with nodes that compute nothing: begins, is ready, ends, whatever ends it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FAKE = Path(__file__).with_name("fake_up.py")


class Up:
    """The command, as a process; its log is read all the time."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        command = [sys.executable, str(FAKE), "up", "stub", "--port=0", *flags]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    def url(self) -> str:
        """Where it serves, once it is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready: http://"), "".join(self.log)
        return line.removeprefix("ready: ").strip()

    def rest(self) -> str:
        """What else it prints, until it has ended."""
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        self.process.wait(30)
        self._reading.join(30)
        return said

    def wait_for(self, text: str) -> None:
        end_s = time.monotonic() + 30
        while text not in "".join(self.log):
            assert time.monotonic() < end_s, "".join(self.log)
            time.sleep(0.01)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._reading.join(30)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def up(*flags: str) -> Iterator[Up]:
    found = Up(flags)
    try:
        yield found
    finally:
        found.close()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until_gone(pids: list[int]) -> None:
    end_s = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end_s, "processes were left behind"
        time.sleep(0.02)


def post(url: str) -> str:
    body = json.dumps({"prompt": "x" * 100}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        text = json.load(response)["choices"][0]["text"]
    assert isinstance(text, str)
    return text


def test_a_pair_that_answers_and_ends() -> None:
    with up("--check") as found:
        url = found.url()
        assert post(url) == "d0 says so"
        pids = children(found.process.pid)
        assert len(pids) == 3
        found.process.send_signal(signal.SIGINT)
        said = found.rest()
        assert found.process.returncode == 0, found.log
        curl, *ledgers = said.splitlines()
        assert curl.startswith(f"  curl {url}/v1/completions") and '"model": "tiny"' in curl
        assert ledgers == [f'{name}: {{"balanced": true, "held": {{}}}}' for name in ("p0", "d0")]
        until_gone(pids)
        log = "".join(found.log)
        assert re.search(r"^p0     \| 10:20:30 loading share=0.5 what=weights$", log, re.MULTILINE)
        assert re.search(r"^router \| .* listening url=", log, re.MULTILINE)
        assert "p0     | 100 %\n" in log
        assert log.index("drained") < log.index("10:20:30 asked to end")


def test_more_than_a_pair() -> None:
    with up("--prefill", "2", "--decode", "3") as found:
        url = found.url()
        assert len(children(found.process.pid)) == 6
        assert {post(url) for _ in range(3)} == {f"d{i} says so" for i in range(3)}
        found.process.terminate()
        found.rest()
        assert found.process.returncode == 0


def test_decode_alone() -> None:
    with up("--prefill", "0") as found:
        assert post(found.url()) == "d0 says so"


def test_what_is_open_is_answered() -> None:
    with up() as found:
        url, told = found.url(), list[str]()
        asking = threading.Thread(target=lambda: told.append(post(url)))
        asking.start()
        time.sleep(0.2)
        found.process.terminate()
        asking.join()
        assert told == ["d0 says so"]
        found.rest()
        assert found.process.returncode == 0


@pytest.mark.parametrize(
    ("flag", "last_words"),
    [
        ("--fails=d0", "d0 ended with status 3; it last said: something is missing"),
        ("--dies=p0", "p0 ended with status 7"),
    ],
)
def test_a_process_that_ends_ends_all(flag: str, last_words: str) -> None:
    with up("--", flag) as found:
        found.wait_for("kvdist: ")
        found.rest()
        assert found.process.returncode == 2
        assert last_words in found.log[-1]
        if "dies" in flag:
            assert "out of luck" in found.log[-1]


def test_a_router_that_can_not_begin() -> None:
    with up() as found:
        port = found.url().rsplit(":", 1)[1]
        with up(f"--port={port}") as other:
            other.rest()
            assert other.process.returncode == 2
            assert "router ended with status 2" in other.log[-1]
            assert f"can't listen at 127.0.0.1:{port}" in other.log[-1]


def test_asked_to_end_before_it_is_ready() -> None:
    with up("--", "--slow=p0") as found:
        found.wait_for("p0     | 10:20:30 loading")
        pids = children(found.process.pid)
        found.process.terminate()
        assert found.rest() == ""
        assert found.process.returncode == 0
        until_gone(pids)


def test_a_node_that_does_not_hear_is_made_to_end() -> None:
    with up("--", "--deaf=d0") as found:
        found.url()
        pids = children(found.process.pid)
        found.process.terminate()
        found.wait_for("d0     | 10:20:30 asked to end")
        found.process.terminate()  # impatient
        found.rest()
        assert found.process.returncode == 0
        until_gone(pids)


@pytest.mark.parametrize("flag", ["--unbalanced=d0", "--no-ledger=d0"])
def test_a_ledger_that_is_not_balanced(flag: str) -> None:
    with up("--check", "--", flag) as found:
        found.url()
        found.process.terminate()
        assert 'd0: {"balanced": false' in found.rest()
        assert found.process.returncode == 1


@pytest.mark.parametrize("flags", [(), ("--", "--deaf")])
def test_killed_it_leaves_nothing_behind(flags: tuple[str, ...]) -> None:
    with up(*flags) as found:
        found.url()
        pids = children(found.process.pid)
        assert len(pids) == 3
        found.process.kill()
        until_gone(pids)
