"""Streams of text: whole characters, and nothing of a stop string."""

import random

import pytest
from hypothesis import given, strategies as st

from kvdist.node.text import Detokenizer, StopStrings
from tests.node.running import TOKENIZER


@given(text=st.text(max_size=40), cuts=st.lists(st.integers(1, 5), max_size=80))
def test_pieces_are_whole_characters_and_together_the_text(text: str, cuts: list[int]) -> None:
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    detokenizer, pieces = Detokenizer(TOKENIZER), []
    while tokens:
        size = cuts.pop() if cuts else 1
        pieces.append(detokenizer.feed(tokens[:size]))
        del tokens[:size]
    pieces.append(detokenizer.end())
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_are_no_text_become_what_decoding_all_of_them_gives(seed: int) -> None:
    chance = random.Random(seed)
    tokens = [chance.randrange(256) for _ in range(200)]
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.feed([token]) for token in tokens] + [detokenizer.end()]
    assert "".join(pieces) == TOKENIZER.decode(tokens)


def test_a_character_that_never_becomes_whole_is_not_waited_for() -> None:
    (first,) = TOKENIZER.encode("\xff")[:1]
    detokenizer = Detokenizer(TOKENIZER)
    said = "".join(detokenizer.feed([first]) for _ in range(100))
    assert len(said) > 60


def test_special_tokens_are_said_only_if_wanted() -> None:
    tokens = TOKENIZER.encode("a<|im_end|>b")
    assert Detokenizer(TOKENIZER).feed(tokens) == "ab"
    assert Detokenizer(TOKENIZER, skip_special_tokens=False).feed(tokens) == "a<|im_end|>b"


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    seed=st.integers(0, 99),
)
def test_said_is_what_comes_before_the_first_stop_string(
    text: str, stops: list[str], include: bool, seed: int
) -> None:
    chance, stream = random.Random(seed), StopStrings(stops, include=include)
    said, at = "", 0
    while at < len(text) and stream.met is None:
        size = chance.randint(1, 4)
        said += stream.feed(text[at : at + size])
        at += size
    if stream.met is None:
        assert said + stream.end() == text
        assert not any(stop in text for stop in stops)
        return
    known = text[:at]
    begin = len(said) - len(stream.met) * include
    assert known.startswith(stream.met, begin)
    assert begin == min(known.find(stop) for stop in stops if stop in known)
    assert said == known[: begin + len(stream.met) * include]
