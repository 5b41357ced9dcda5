"""From settings to a runner: what each setting changes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kvdist.errors import ConfigError
from kvdist.worker.build import Built, build
from kvdist.worker.settings import WorkerSettings
from tests.worker.tiny import VOCAB, network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("models") / "llama"
    network("llama").save_pretrained(path)
    return str(path)


def built(folder: str, **settings: Any) -> Built:
    told = {"device": "cpu", "num_blocks": 9, **settings}
    return build(WorkerSettings(model=folder, **told), lambda what, share: None)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_dtype_of_weights_and_kv(folder: str, dtype: str, expected: torch.dtype) -> None:
    found = built(folder, dtype=dtype)
    assert all(weight.dtype == expected for weight in found.runner.model.network.parameters())
    whole = built(folder, dtype="float32").runner.pool.layout.bytes_per_block
    size = found.runner.pool.layout.bytes_per_block
    assert size == whole * expected.itemsize // 4


def test_device(folder: str) -> None:
    assert built(folder, device="cpu").runner.pool.region.device.type == "cpu"
    here = "cuda" if torch.cuda.is_available() else "cpu"
    assert built(folder, device="auto").runner.pool.region.device.type == here
    with pytest.raises(ConfigError, match="'cuda:77'"):
        built(folder, device="cuda:77")


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_memory_for_kv(folder: str, size: int) -> None:
    found = built(folder, num_blocks=None, kv_cache_memory_bytes=size)
    block = found.runner.pool.layout.bytes_per_block
    assert found.num_blocks == size // block
    assert size - block < found.runner.pool.region.numel() <= size


def test_memory_for_less_than_a_block(folder: str) -> None:
    with pytest.raises(ConfigError, match="at least the null block and one more"):
        built(folder, num_blocks=None, kv_cache_memory_bytes=100)


def test_blocks_and_lengths(folder: str) -> None:
    found = built(folder, block_size=32, max_model_len=99)
    assert found.groups[0].kv_cache_spec.block_size == 32
    assert (found.num_blocks, found.max_model_len, found.vocab_size) == (9, 99, VOCAB)
    with pytest.raises(ConfigError, match="choose less"):
        built(folder, max_model_len=1 << 20)
