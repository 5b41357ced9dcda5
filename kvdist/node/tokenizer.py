"""Text to tokens and back, and a conversation to text.

Owns:   the vocabulary and the chat template of one model.
Knows nothing of: requests, streams; `text` makes a stream of text out of tokens.
Source: the files are those of a model's folder: tokenizer.json, tokenizer_config.json,
        chat_template.jinja, generation_config.json.
"""

import datetime
import json
from collections.abc import Mapping, Sequence as Listing
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer as Vocabulary, decoders, models, pre_tokenizers

from kvdist.errors import ConfigError, InvalidRequest

Message = Mapping[str, Any]

#: For a model without one.
_PLAIN_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """`eos_token_ids` end a sequence, if they are not to be ignored."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        chat_template: str | None,
        special: Mapping[str, str],
        eos_token_ids: frozenset[int],
        vocab_size: int | None = None,
    ) -> None:
        """`vocab_size`: the model has so many tokens; None: as many as there are."""
        self._vocabulary = vocabulary
        self._special = dict(special)
        self.eos_token_ids = eos_token_ids
        named = vocabulary.get_vocab(with_added_tokens=True).values()
        #: Ids from this on are no tokens of the model's.
        self.size = 1 + max(named, default=-1) if vocab_size is None else vocab_size
        #: So many tokens have a name that the model doesn't know.
        self.num_unknown = sum(token_id >= self.size for token_id in named)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        environment.filters["tojson"] = lambda value, **more: json.dumps(
            value, ensure_ascii=False, **more
        )
        try:
            self._template = environment.from_string(chat_template) if chat_template else None
        except TemplateError as error:
            raise ConfigError(f"the model's chat template can't be read: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path, vocab_size: int | None = None) -> "Tokenizer":
        """That of the model in `folder`, which has `vocab_size` tokens.

        Raises: ConfigError, also if the model doesn't know the tokens that begin or end a text.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ConfigError(f"{folder} has no tokenizer.json: a fast tokenizer is needed")
        try:
            vocabulary = Vocabulary.from_file(str(path))
        except Exception as error:  # it has no error of its own
            raise ConfigError(f"{path} can't be read: {error}") from error
        settings = read_settings(folder / "tokenizer_config.json")
        special = {
            name: value if isinstance(value, str) else value["content"]
            for name, value in settings.items()
            if name.endswith("_token") and isinstance(value, str | dict)
        }
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, by name
            template = {one["name"]: one["template"] for one in template}.get("default")
        if (file := folder / "chat_template.jinja").exists():
            template = file.read_text(encoding="utf-8")
        if vocab_size is not None:
            _check_special(folder, vocabulary, special, vocab_size)
        return cls(
            vocabulary,
            chat_template=template,
            special=special,
            eos_token_ids=_eos(folder, vocabulary, special),
            vocab_size=vocab_size,
        )

    @classmethod
    def of_bytes(cls) -> "Tokenizer":
        """A token for each byte, printable ones first, for a worker without a model."""
        order = [*range(32, 127), 10, *sorted({*range(256)} - {*range(32, 127), 10})]
        letters = _letters()
        names = {letters[byte]: number for number, byte in enumerate(order)}
        vocabulary = Vocabulary(models.BPE(vocab=names, merges=[]))
        vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        vocabulary.decoder = decoders.ByteLevel()
        end = "<|im_end|>"
        vocabulary.add_special_tokens([AddedToken("<|im_start|>"), AddedToken(end)])
        return cls(
            vocabulary,
            chat_template=_PLAIN_TEMPLATE,
            special={"eos_token": end},
            eos_token_ids=frozenset([len(names) + 1]),
        )

    def check(self, token_ids: Listing[int]) -> None:
        """Raises: InvalidRequest if the model doesn't know one of them."""
        if (largest := max(token_ids, default=0)) >= self.size:
            raise InvalidRequest(
                f"token {largest} of the prompt is not in the model's vocabulary, which ends "
                f"with {self.size - 1}"
            )

    # -- text and tokens -----------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of `text`."""
        ids: list[int] = self._vocabulary.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Listing[int], *, skip_special_tokens: bool = True) -> str:
        """Their text; what isn't UTF-8 becomes U+FFFD."""
        text: str = self._vocabulary.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens
        )
        return text

    def token(self, token_id: int) -> str:
        """One token's own text, special or not."""
        return self.decode([token_id], skip_special_tokens=False)

    def chat(
        self, messages: Listing[Message], *, add_generation_prompt: bool, more: Message
    ) -> str:
        """The text of a conversation. Raises: InvalidRequest."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use /v1/completions")
        try:
            return self._template.render(
                {
                    **self._special,
                    **more,
                    "messages": messages,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidRequest(f"the chat template refuses the messages: {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty if there is none. Raises: ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ConfigError(f"{path} can't be read: {error}") from error
    return found if isinstance(found, dict) else {}


def _check_special(
    folder: Path, vocabulary: Vocabulary, special: Mapping[str, str], vocab_size: int
) -> None:
    for name in ("bos_token", "eos_token"):
        token_id = vocabulary.token_to_id(special.get(name, ""))
        if token_id is not None and token_id >= vocab_size:
            raise ConfigError(
                f"the {name} of {folder} is {token_id}, and its model has {vocab_size} tokens: is "
                "the tokenizer another model's?"
            )


def _eos(folder: Path, vocabulary: Vocabulary, special: Mapping[str, str]) -> frozenset[int]:
    """What generation_config.json says, or config.json; and the tokenizer's own."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        told = read_settings(folder / name).get("eos_token_id")
        if told is not None:
            found.update(told if isinstance(told, list) else [told])
            break
    if (token := special.get("eos_token")) is not None:
        token_id = vocabulary.token_to_id(token)
        found.update([] if token_id is None else [token_id])
    return frozenset(found)


def _letters() -> list[str]:
    """The letter by which a byte-level vocabulary names each byte, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    by_byte = {byte: chr(byte) for byte in shown}
    by_byte |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [by_byte[byte] for byte in range(256)]


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)
