"""Folders of workers' sockets: nothing stays of one whose owner was killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvdist.links.socket_folder import clear, socket_folder

_OWNER = """
import sys, time
from kvdist.links.socket_folder import socket_folder
with socket_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For all folders, of this process and of others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_there_while_the_block_runs() -> None:
    with socket_folder() as folder:
        (folder / "socket").touch()
        clear()
        assert (folder / "socket").exists()
    assert not folder.exists()


def test_nothing_stays_of_an_owner_that_was_killed(place: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.parent == place
        clear()
        assert folder.exists()
        os.kill(owner.pid, signal.SIGKILL)
    with socket_folder() as another:
        assert list(place.iterdir()) == [another]


def test_what_is_not_ours_stays(place: Path) -> None:
    (place / "kvdist-worker-results").mkdir()
    (place / "kvdist-worker-file").touch()
    clear()
    assert len(list(place.iterdir())) == 2
