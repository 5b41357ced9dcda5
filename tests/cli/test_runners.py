"""What a model's name stands for, and what a worker's process is told before PyTorch is there."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvdist.cache import FullAttentionSpec, KVCacheGroupSpec
from kvdist.cli.runners import build_runner, tokenizer_of
from kvdist.errors import ConfigError
from kvdist.node.worker_wire import Capacity
from kvdist.sched.audio import AudioWindow
from kvdist.worker.settings import WorkerSettings

GROUPS = (KVCacheGroupSpec(FullAttentionSpec(block_size=8)),)


def no_progress(what: str, share: float) -> None:
    pass


def use(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """`module` in place of what builds runners with PyTorch."""
    monkeypatch.setitem(sys.modules, "kvdist.worker.build", module)
    monkeypatch.delattr("kvdist.worker.build", raising=False)


def test_a_model_is_built_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    window = AudioWindow(16000, 480000, 1500)
    built = SimpleNamespace(
        runner="runner",
        num_blocks=9,
        groups=GROUPS,
        max_model_len=64,
        folder=Path("folder"),
        window=window,
        vocab_size=7,
    )

    def build(settings: Any, progress: Any, allocate: Any) -> Any:
        assert (settings.model, settings.dtype) == ("somewhere", "float32")
        assert os.environ["OMP_WAIT_POLICY"] == "passive"
        return built

    use(monkeypatch, SimpleNamespace(build=build))
    settings = WorkerSettings(model="somewhere", dtype="float32")
    made: Any = build_runner(settings, no_progress)
    runner, capacity = made
    assert runner == "runner"
    assert capacity == Capacity(9, GROUPS, 64, "folder", window, 7)
    monkeypatch.delenv("OMP_WAIT_POLICY")


def test_what_somebody_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    use(monkeypatch, None)
    with pytest.raises(ConfigError, match="extra 'serve'"):
        build_runner(WorkerSettings(model="somewhere"), no_progress)
    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_the_stub_needs_no_files() -> None:
    settings = WorkerSettings(model="stub", block_size=8, num_blocks=9, max_model_len=64)
    _, capacity = build_runner(settings, no_progress)
    assert capacity == Capacity(9, GROUPS, 64)
    assert tokenizer_of(capacity).decode(tokenizer_of(capacity).encode("some text")) == "some text"


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_tokenizer(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        tokenizer_of(Capacity(9, GROUPS, 64, str(tmp_path)))
