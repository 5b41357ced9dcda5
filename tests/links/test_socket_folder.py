"""What killed workers leave goes when the next one begins."""

import os
import tempfile
from pathlib import Path

import pytest

from kvdist.links.socket_folder import socket_folder


def test_what_the_dead_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone, lives, others = (tmp_path / f"kvdist-{name}-x" for name in (1 << 30, os.getpid(), "a"))
    for folder in (gone, lives, others):
        folder.mkdir()
        (folder / "worker-0").touch()
    with socket_folder() as ours:
        assert Path(ours).parent == tmp_path
        assert {path.name for path in tmp_path.iterdir()} == {
            lives.name,
            others.name,
            Path(ours).name,
        }
    assert not Path(ours).exists()
