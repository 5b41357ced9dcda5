import pytest
from hypothesis import given, strategies as st

from tests.transports.linked import config
from transports import registry
from transports.address import Address, parse
from transports.errors import LocalMisuse, Unsupported
from transports.registry import TRANSPORTS, make_transport


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("memory://name", Address("memory", "name")),
        ("tcp://host:7", Address("tcp", "host", 7)),
        ("tcp://[::1]:0", Address("tcp", "::1", 0)),
        ("ucx://10.0.0.1:65535", Address("ucx", "10.0.0.1", 65535)),
        ("shm:///run/x.sock", Address("shm", path="/run/x.sock")),
    ],
)
def test_there_and_back(text: str, address: Address) -> None:
    assert parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "tcp://host",
        "tcp://:1",
        "tcp://host:65536",
        "tcp://host:x",
        "tcp://host:1/path",
        "tcp://[::1:1",
        "tcp://user@host:1",
        "memory://name:1",
        "memory://name?a=1",
        "memory://name#part",
        None,
        7,
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(LocalMisuse):
        parse(text)


@given(st.text(max_size=40) | st.from_regex(r"(tcp|memory|shm|ucx)://.{0,20}"))
def test_any_text_is_an_address_or_misuse(text: str) -> None:
    try:
        address = parse(text)
    except LocalMisuse:
        return
    assert parse(str(address)) == address


def test_an_unknown_scheme() -> None:
    with pytest.raises(LocalMisuse, match="no transport 'http'"):
        make_transport("http://host", config())


def test_a_transport_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TRANSPORTS, "tcp", ("transports.no_such_module", "X"))
    with pytest.raises(Unsupported, match="tcp isn't there"):
        make_transport("tcp://host:1", config())
    assert "memory" in TRANSPORTS
