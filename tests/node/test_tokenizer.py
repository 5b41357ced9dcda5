"""What is read of a model's folder: vocabulary, end tokens, chat template."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvdist.errors import ConfigError, InvalidRequest
from kvdist.node.tokenizer import Tokenizer
from tests.node.running import TOKENIZER

SAID = [{"role": "user", "content": "hi"}]


def folder(tmp_path: Path, **files: Any) -> Path:
    TOKENIZER._vocabulary.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        suffix = ".jinja" if name == "chat_template" else ".json"
        (tmp_path / f"{name}{suffix}").write_text(text)
    return tmp_path


def chat(tokenizer: Tokenizer, **more: Any) -> str:
    return tokenizer.chat(SAID, add_generation_prompt=True, more=more)


def test_a_bare_folder_has_no_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path))
    assert tokenizer.encode("abc") == TOKENIZER.encode("abc")
    assert tokenizer.eos_token_ids == frozenset()
    with pytest.raises(InvalidRequest, match="no chat template"):
        chat(tokenizer)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [3, 4]}, "config": {"eos_token_id": 5}}, {3, 4}),
        ({"config": {"eos_token_id": 5}}, {5}),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, {257}),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}}, {257}),
        ({"tokenizer_config": {"eos_token": "nothing"}}, set()),
    ],
)
def test_end_tokens(tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
    assert Tokenizer.from_folder(folder(tmp_path, **files)).eos_token_ids == expected


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"chat_template": "T{{ messages[0].content }}"}},
        {"chat_template": "T{{ messages[0].content }}"},
        {
            "tokenizer_config": {
                "chat_template": [
                    {"name": "tool_use", "template": "no"},
                    {"name": "default", "template": "T{{ messages[0].content }}"},
                ]
            }
        },
        {"chat_template": "T{{ messages[0].content }}", "tokenizer_config": {"chat_template": "x"}},
    ],
)
def test_templates(tmp_path: Path, files: dict[str, Any]) -> None:
    assert chat(Tokenizer.from_folder(folder(tmp_path, **files))) == "Thi"


def test_what_templates_use(tmp_path: Path) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m | tojson }}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{% if add_generation_prompt %}{{ mood }}{% endif %}"
    )
    files = {"chat_template": template, "tokenizer_config": {"bos_token": "<s>"}}
    tokenizer = Tokenizer.from_folder(folder(tmp_path, **files))
    assert chat(tokenizer, mood="!") == '<s>{"role": "user", "content": "hi"}4!'


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing.at.all }}",
        "{{ messages.__class__.__mro__ }}",
    ],
)
def test_a_template_that_refuses(tmp_path: Path, template: str) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path, chat_template=template))
    with pytest.raises(InvalidRequest, match="template refuses"):
        chat(tokenizer)


def test_a_template_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat template can't be read"):
        Tokenizer.from_folder(folder(tmp_path, chat_template="{% if %}"))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(folder(tmp_path, tokenizer_config="{"))


def test_tokens_that_the_model_does_not_know(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path), 100)
    assert (tokenizer.size, tokenizer.num_unknown) == (100, 158)
    tokenizer.check([0, 99])
    tokenizer.check([])
    with pytest.raises(InvalidRequest, match=r"token 100 of the prompt .* ends with 99"):
        tokenizer.check([3, 100])


def test_a_model_may_have_more_tokens_than_have_a_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder(tmp_path), 300)
    assert (tokenizer.size, tokenizer.num_unknown) == (300, 0)
    tokenizer.check([299])


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_an_end_that_the_model_does_not_know(tmp_path: Path, name: str) -> None:
    files = {"tokenizer_config": {name: "<|im_end|>"}}
    assert Tokenizer.from_folder(folder(tmp_path, **files), 258).size == 258
    with pytest.raises(ConfigError, match=f"the {name} of .* is 257, and its model has 257"):
        Tokenizer.from_folder(folder(tmp_path, **files), 257)
