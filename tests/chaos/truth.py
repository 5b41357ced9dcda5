"""What is asked, and what has to be answered.

Owns:   the prompts.
Knows nothing of: nodes, transports.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.node.running import perfect


@dataclass(frozen=True, slots=True)
class Question:
    """What a request has in it, whoever is asked."""

    prompt: str | list[int]
    num_tokens: int

    @property
    def body(self) -> dict[str, Any]:
        """Of a request."""
        told = {"prompt": self.prompt, "max_tokens": self.num_tokens}
        return told | {"ignore_eos": True, "temperature": 0}


class Truth(Protocol):
    """Asks, and knows the answers."""

    @property
    def model(self) -> str:
        """As `kvdist serve` calls it."""

    def question(self, chance: random.Random) -> Question:
        """Another one; some begin alike."""

    def is_right(self, question: Question, text: str) -> bool:
        """Whether that is its whole answer."""


class StubTruth:
    """The stub says what a function of the tokens before says."""

    model = "stub"

    def question(self, chance: random.Random) -> Question:
        """See `Truth`."""
        shared = chance.choice(["alpha ", "beta "]) * chance.choice([1, 5, 20, 40])
        tail = f"{chance.random()} " + "w " * chance.randrange(0, 300)
        return Question(shared + tail, chance.randrange(1, 24))

    def is_right(self, question: Question, text: str) -> bool:
        """See `Truth`."""
        return text == perfect(question.prompt, question.num_tokens)


@dataclass
class TinyTruth:
    """A small Llama with random weights: transformers says what it generates greedily."""

    folder: Path
    num_prompts: int = 24
    num_tokens: int = 12
    _questions: list[Question] = field(default_factory=list)

    def __post_init__(self) -> None:
        from tests.worker import tiny

        self._tiny = tiny
        tiny.network("llama").save_pretrained(self.folder)
        _save_words(self.folder / "tokenizer.json", tiny.VOCAB)
        for number in range(self.num_prompts):
            prompt = tiny.stream(number % 6)[: 20 + 11 * number]
            tiny.continuation("llama", prompt, self.num_tokens)  # kept, so that it is there at once
            self._questions.append(Question(list(prompt), self.num_tokens))

    @property
    def model(self) -> str:
        """See `Truth`."""
        return str(self.folder)

    def question(self, chance: random.Random) -> Question:
        """See `Truth`."""
        return chance.choice(self._questions)

    def is_right(self, question: Question, text: str) -> bool:
        """See `Truth`; where the choice was close it may part."""
        said = [int(word.removeprefix("w")) for word in text.split()]
        expected = self._tiny.continuation("llama", tuple(question.prompt), self.num_tokens)
        try:
            self._tiny.Comparison().add(expected, said)
        except (AssertionError, IndexError):
            return False
        return len(said) == question.num_tokens


def _save_words(path: Path, count: int) -> None:
    """A vocabulary of words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, "w0"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    vocabulary.save(str(path))
