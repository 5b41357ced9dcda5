"""Models from directories: what is read, what is refused and with which words."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvdist.cache import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from kvdist.errors import ConfigError
from kvdist.worker.families import architecture, attention_layers
from kvdist.worker.model import Model, load
from tests.worker.tiny import network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama, saved."""
    network("llama").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_saved_is_loaded(folder: Path) -> None:
    model = load(folder)
    assert (model.dtype, model.vocab_size, model.max_model_len) == (torch.float32, 512, 1024)
    saved, loaded = network("llama").state_dict(), model.network.state_dict()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)


def test_another_dtype(folder: Path) -> None:
    assert load(folder, "bfloat16").dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dtype": "int8"}, "none of auto, float32, bfloat16, float16"),
        ({"device": "abacus"}, "doesn't go to device 'abacus'"),
    ],
)
def test_settings_that_can_not_be(folder: Path, arguments: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(folder, **arguments)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no directory"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_files_that_are_missing_or_damaged(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    if damage == "missing":
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(ConfigError, match=r"config\.json"):
        load(folder)


def test_weights_that_are_not_there(folder: Path) -> None:
    rewrite(folder, num_hidden_layers=6)
    with pytest.raises(ConfigError, match=r"lacks 18 weights, the first is model\.layers\.4"):
        load(folder)


def test_an_architecture_that_does_not_run_here(folder: Path) -> None:
    rewrite(folder, architectures=["GPT2LMHeadModel"])
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel is not supported; .* LlamaForCausalLM"):
        load(folder)


def test_no_architecture_at_all(folder: Path) -> None:
    rewrite(folder, architectures=None)
    with pytest.raises(ConfigError, match="none named"):
        load(folder)


def test_kinds_of_layers() -> None:
    config = network("gemma3").config
    assert architecture(config) == "Gemma3ForCausalLM"
    assert [layer.window for layer in attention_layers(config)] == [24] * 5 + [None] + [24]
    assert {layer.window for layer in attention_layers(network("mistral").config)} == {24}
    assert [layer.index for layer in attention_layers(network("lfm2").config)] == [1, 3]


def test_groups_with_windows() -> None:
    layout = Model.of(network("gemma2")).layout(8)
    full, window = (group.kv_cache_spec for group in layout.kv_cache_groups[::-1])
    assert isinstance(full, FullAttentionSpec) and isinstance(window, SlidingWindowSpec)
    assert window.sliding_window == 24 and full.page_size_bytes == 8 * 2 * 2 * 16 * 4
    assert len(layout.buffers) == 2


def test_groups_with_states_have_one_page_size_and_one_block_size() -> None:
    layout = Model.of(network("granite-hybrid")).layout(4)
    specs = [group.kv_cache_spec for group in layout.kv_cache_groups]
    assert {type(spec) for spec in specs} == {MambaSpec, FullAttentionSpec}
    assert len({(spec.page_size_bytes, spec.block_size) for spec in specs}) == 1
