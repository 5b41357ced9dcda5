"""What a decoder is told before it writes down what an encoder has heard.

Owns:   the tokens for languages and tasks of one model.
Knows nothing of: requests, sound.
Source: generation_config.json of Whisper's models, and the order of tokens in which they were
        trained: what was said before, start, language, task, no timestamps.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvdist.errors import ConfigError, InvalidRequest
from kvdist.node.tokenizer import Tokenizer, read_settings
from kvdist.sched.audio import AudioWindow

Task: TypeAlias = Literal["transcribe", "translate"]


@dataclass(frozen=True, slots=True)
class Speech:
    """How to ask one model; an English one has no languages and no tasks."""

    window: AudioWindow
    start: int
    #: By their codes, as `en`.
    languages: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    no_timestamps: int | None = None
    #: Comes before what was said before.
    previously: int | None = None

    @classmethod
    def from_folder(cls, folder: Path, window: AudioWindow) -> "Speech":
        """As the model's files say. Raises: ConfigError."""
        told: dict[str, Any] = read_settings(folder / "config.json")
        told |= read_settings(folder / "generation_config.json")
        start = told.get("decoder_start_token_id")
        if type(start) is not int:
            raise ConfigError(f"{folder} doesn't say with which token its decoder starts")
        languages = told.get("lang_to_id") or {}
        return cls(
            window,
            start,
            {token.strip("<|>"): token_id for token, token_id in languages.items()},
            told.get("task_to_id") or {},
            told.get("no_timestamps_token_id"),
            told.get("prev_sot_token_id"),
        )

    def prompt(
        self,
        tokenizer: Tokenizer,
        task: Task,
        language: str | None,
        said_before: str | None,
        most: int,
    ) -> list[int]:
        """The decoder's first tokens, with at most `most` of `said_before`, its last ones.

        Raises: InvalidRequest if the model can't do that.
        """
        tokens = [self.start]
        if self.languages:
            tokens += [self._language(language or "en"), self._task(task)]
        elif task != "transcribe" or language not in (None, "en"):
            raise InvalidRequest("this model writes down English, and does nothing else")
        if self.no_timestamps is not None:
            tokens.append(self.no_timestamps)
        return self._before(tokenizer, said_before, most) + tokens

    def _language(self, code: str) -> int:
        token = self.languages.get(code.lower())
        if token is None:
            known = ", ".join(sorted(self.languages))
            raise InvalidRequest(f"this model has no language {code!r}; it has {known}")
        return token

    def _task(self, task: Task) -> int:
        if task not in self.tasks:
            raise InvalidRequest(f"this model can't {task}")
        return self.tasks[task]

    def _before(self, tokenizer: Tokenizer, text: str | None, most: int) -> list[int]:
        if not text or not text.strip():
            return []
        if self.previously is None:
            raise InvalidRequest("this model takes no prompt")
        tokens = tokenizer.encode(f" {text.strip()}", add_special_tokens=False)
        return [self.previously, *tokens[max(0, len(tokens) - most) :]]
