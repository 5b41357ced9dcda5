"""A stream of text out of a stream of tokens: whole characters only, and an end at stop strings.

Owns:   what has been said of one sequence, and what is held back.
Knows nothing of: HTTP, schedulers.
Units:  characters.
Source: decoding a window of tokens again, and saying what is new, is the way of Hugging Face's
        text-generation-inference and of vLLM (vllm/v1/engine/detokenizer.py, 0.32).
"""

from collections.abc import Sequence as Listing

from kvdist.node.tokenizer import Tokenizer

#: Stands at the end of a text whose last character isn't whole yet, once or for each byte.
_PART = "\N{REPLACEMENT CHARACTER}"
#: Tokens after which a character that is never whole is said as it is.
_MAX_OPEN_TOKENS = 16


class Detokenizer:
    """Text of one sequence, piece by piece.

    Tokens are decoded again from where the last whole piece but one begins, since what a token
    stands for depends on those before it.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        #: Tokens of the window that were said as a whole.
        self._num_whole = 0
        #: Characters of the window that were said.
        self._said = 0

    def feed(self, token_ids: Listing[int]) -> str:
        """The characters that became whole."""
        self._ids += token_ids
        text = self._decode(self._ids)
        is_whole = not text.endswith(_PART) or len(self._ids) - self._num_whole > _MAX_OPEN_TOKENS
        new = text[self._said : len(text if is_whole else text.rstrip(_PART))]
        self._said += len(new)
        if is_whole:
            del self._ids[: self._num_whole]
            self._num_whole = len(self._ids)
            self._said = len(self._decode(self._ids))
        return new

    def end(self) -> str:
        """What is left: a character that never became whole."""
        return self._decode(self._ids)[self._said :]

    def _decode(self, ids: Listing[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)


class StopStrings:
    """Holds back what may be the beginning of a stop string."""

    def __init__(self, stops: Listing[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        #: The one that was met.
        self.met: str | None = None

    def feed(self, text: str) -> str:
        """What can be said; nothing more, once a stop string was met."""
        if not self._stops or self.met is not None:
            return text if self.met is None else ""
        held = self._held + text
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            at, self.met = min(found)
            self._held = ""
            return held[: at + len(self.met) * self._include]
        keep = self._open(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def end(self) -> str:
        """What was held back for nothing."""
        held, self._held = self._held, ""
        return held

    def _open(self, text: str) -> int:
        """The most characters at the end that some stop string begins with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
