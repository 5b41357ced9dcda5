"""Server-sent events on their way to clients, in any pieces; usage; bodies of requests."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kvdist.errors import ConfigError, InvalidRequest, NodeFailed
from kvdist.router.bodies import Asked
from kvdist.router.events import Events
from kvdist.router.settings import RouterSettings, StaticNode
from kvdist.router.usage import Found, Sources, with_sources

HIDDEN = b'data: {"choices": [], "kv_transfer_params": {"a": 1}}\n\n'
PLAIN = b'data: {"choices":  [{"text":"x"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9}}\n\n'
DONE = b"data: [DONE]\n\n"


def events(*, wants_usage: bool = False) -> Events:
    return Events(lambda usage: usage | {"shown": True}, wants_usage=wants_usage)


def test_most_events_pass_as_they_are() -> None:
    found = events()
    assert found.feed(PLAIN + b": a comment\n\n" + PLAIN + DONE) == (
        PLAIN + b": a comment\n\n" + PLAIN + DONE
    )
    found.end()


def test_other_ends_of_lines() -> None:
    found = events()
    told = found.feed(b'data: {"choices": [],\r\ndata: "kv_transfer_params": 1}\r\n\r\n' + DONE)
    assert told == b'data: {"choices": []}\n\n' + DONE
    found.end()


@given(st.lists(st.integers(1, 60)))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    data = PLAIN + HIDDEN + USAGE + PLAIN + DONE
    found, told, place = events(), b"", 0
    for cut in [*cuts, len(data)]:
        told += found.feed(data[place : place + cut])
        place += cut
    found.end()
    assert told == PLAIN + b'data: {"choices": []}\n\n' + PLAIN + DONE
    assert found.found == Found(9, 0, 0)


def test_usage_for_those_who_want_it() -> None:
    told = events(wants_usage=True).feed(USAGE)
    assert json.loads(told.removeprefix(b"data: "))["usage"] == {"prompt_tokens": 9, "shown": True}


def test_usage_in_every_chunk() -> None:
    chunk = b'data: {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 9}}\n\n'
    assert b'"shown": true' in events().feed(chunk)


def test_words_that_look_like_fields() -> None:
    chunk = b'data: {"choices": [{"text": "\\"usage\\" \\"error\\""}]}\n\n'
    found = events()
    assert found.feed(chunk) == chunk
    assert not found.has_failed
    with pytest.raises(NodeFailed):
        found.end()


@pytest.mark.parametrize("data", [PLAIN, PLAIN + DONE[:-2], DONE + b"data: x"])
def test_a_stream_that_is_cut(data: bytes) -> None:
    found = events()
    found.feed(data)
    with pytest.raises(NodeFailed, match="in the middle"):
        found.end()


def test_a_stream_that_says_that_it_failed() -> None:
    found = events()
    found.feed(PLAIN + b'data: {"error": {"message": "x"}}\n\n')
    found.end()


def test_nonsense() -> None:
    with pytest.raises(NodeFailed, match="not JSON"):
        events().feed(b'data: {"usage": \n\n')
    with pytest.raises(NodeFailed, match="not JSON"):
        events().feed(b'data: {"usage": ' + b"[" * 100_000 + b"\n\n")
    assert events().feed(b'data: ["usage"]\n\n') == b'data: ["usage"]\n\n'
    with pytest.raises(NodeFailed, match="more than"):
        events().feed(b"x" * ((4 << 20) + 1))


# -- usage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [None, [], {}, {"prompt_tokens": "9"}, {"prompt_tokens": -1}, {"prompt_tokens": True}],
)
def test_usage_that_says_nothing(usage: Any) -> None:
    assert Found.read(usage) == Found(0, 0, 0)


@given(st.integers(0, 50), st.integers(0, 90), st.integers(0, 90), st.integers(0, 90))
def test_each_token_is_counted_once(tokens: int, cached: int, remote: int, had: int) -> None:
    details = {"cached_tokens": cached, "remote_tokens": remote}
    decode = Found.read({"prompt_tokens": tokens, "prompt_tokens_details": details})
    for prefill in (None, Found(tokens, had, 0), Found(tokens, 0, had)):
        found = Sources.of(decode, prefill)
        parts = (found.cached, found.remote_cached, found.remote_computed, found.computed)
        assert min(parts) >= 0
        assert sum(parts) == tokens


def test_what_a_node_says_stays() -> None:
    usage = {"prompt_tokens": 5, "prompt_tokens_details": {"other": 1}}
    assert with_sources(usage, Sources(1, 2, 3, 4)) == {
        "prompt_tokens": 5,
        "prompt_tokens_details": {
            "other": 1,
            "remote_cached_tokens": 2,
            "remote_computed_tokens": 3,
        },
    }
    assert "prompt_tokens_details" in with_sources(
        {"prompt_tokens_details": None}, Sources(0, 0, 0, 0)
    )


# -- bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_a_body_that_is_none(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Asked.read(data, allow_params=False)


@pytest.mark.parametrize(
    ("body", "num_chars", "num_prompts"),
    [
        ({}, 0, 1),
        ({"prompt": None}, 0, 1),
        ({"prompt": []}, 0, 0),
        ({"prompt": "abc"}, 3, 1),
        ({"prompt": [1, 2, 3]}, 12, 1),
        ({"prompt": ["ab", "c"]}, 3, 2),
        ({"prompt": [[1], [2, 3]]}, 12, 2),
        ({"prompt": {"a": 1}}, 0, 1),
        ({"messages": [{"content": "abc"}, {"content": None}, {}, 7, "x"]}, 3, 1),
        ({"messages": [{"content": [{"text": "abc"}, {"text": 1}, "x", {}]}]}, 3, 1),
    ],
)
def test_how_long_a_prompt_is(body: dict[str, Any], num_chars: int, num_prompts: int) -> None:
    asked = Asked(body, None)
    assert (asked.num_chars, asked.num_prompts) == (num_chars, num_prompts)


def test_options_of_a_stream() -> None:
    def told(**body: Any) -> Any:
        alone: Any = Asked(body, None).alone()
        return alone.get("stream_options")

    assert told(stream=True) == {"include_usage": True}
    assert told(stream=True, stream_options={"include_usage": False, "a": 1}) == {
        **{"include_usage": True, "a": 1}
    }
    assert told(stream=True, stream_options=None) == {"include_usage": True}
    assert told(stream=True, stream_options=7) == 7  # the node says what is wrong with it
    assert told(stream=False) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "p0", "p0=prefill", "p0=other,http://h", "=prefill,http://h", "p0=prefill,h:1"),
        *("p 0=prefill,http://h:1", "p0=prefill,http://h:1/v1", "p0=prefill,http://a@h:1"),
    ],
)
def test_what_is_not_a_node(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME="):
        StaticNode.read(text)


def test_names_are_names_of_one() -> None:
    node = StaticNode.read("p0=prefill,http://h:1")
    with pytest.raises(ConfigError, match="same name"):
        RouterSettings(nodes=(node, node))
