"""Messages <-> bytes: msgpack, every type and size checked before anything is believed.

Owns:   the number of each kind of message.
Knows nothing of: what messages are for.
Format: an array: version, kind, fields in order. Fields that are new (`Since`) are left out for an
        older peer, and take their defaults when it speaks; kinds that are new it never gets.
Source: the fields' limits stand in `messages`.
"""

import enum
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NewType,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgpack  # type: ignore[import-untyped]

from kvdist.connector import messages
from kvdist.connector.messages import OLDEST_VERSION, VERSION, AtMost, Message, Since, since
from kvdist.errors import RemoteProtocol

#: Numbers are for ever: new kinds are added at the end.
KINDS: Final[tuple[type, ...]] = (
    messages.Release,
    messages.Released,
    messages.Renew,
    messages.Borrow,
    messages.Lent,
    messages.Stream,
    messages.StreamState,
    messages.Withdrawn,
    messages.Open,
    messages.Opened,
    messages.Settled,
    messages.Denied,
    messages.Confirm,
    messages.Confirmed,
    messages.Close,
    messages.StillReading,
    messages.Hello,
    messages.Refused,
)
_NUMBER: Final = {kind: number for number, kind in enumerate(KINDS)}
MAX_MESSAGE_BYTES: Final = 8 << 20


class _Spoken(NamedTuple):
    """How a message is to be read."""

    #: The version that both sides know.
    version: int
    #: It comes from somebody newer, who may say more than we know.
    says_more: bool


#: (plain value, how it is read) -> value.
_Reader = Callable[[Any, _Spoken], Any]


def encode(message: Message, version: int = VERSION) -> bytes:
    """For a peer that speaks `version`, which has this kind of message."""
    assert since(type(message)) <= version, f"{type(message).__name__} in version {version}"
    packed: bytes = msgpack.packb(
        [version, _NUMBER[type(message)], *_plain_fields(message, version)]
    )
    return packed


def decode(data: bytes, latest: int = VERSION) -> Message:
    """A message, sound in all its types and sizes; `latest` is the version that we speak.

    Raises: RemoteProtocol.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise RemoteProtocol(f"a message of {len(data)} bytes")
    try:
        raw = msgpack.unpackb(
            data, use_list=False, raw=False, object_pairs_hook=_refuse, ext_hook=_refuse
        )
    except Exception as error:  # noqa: BLE001 (msgpack raises half a dozen unrelated kinds)
        raise RemoteProtocol(f"no message: {type(error).__name__}") from None
    if not isinstance(raw, tuple) or len(raw) < 2:
        raise RemoteProtocol("no message: not an array")
    version, number, *values = raw
    if type(version) is not int or version < OLDEST_VERSION:
        raise RemoteProtocol(f"a message of version {version!r}")
    if type(number) is not int or not 0 <= number < len(KINDS):
        raise RemoteProtocol(f"no kind of message: {number!r}")
    spoken = _Spoken(min(version, latest), version > latest)
    if since(KINDS[number]) > spoken.version:
        raise RemoteProtocol(f"no kind of message: {number!r} in version {spoken.version}")
    message: Message = _read_fields(KINDS[number], values, spoken)
    return message


def _refuse(*_: Any) -> NoReturn:
    """No message has a map or an extension; millions of empty ones would fill the memory."""
    raise RemoteProtocol("no message: a map")


# -- writing ---------------------------------------------------------------------------------------


def _plain_fields(value: Any, version: int) -> list[Any]:
    return [
        _plain(getattr(value, name), version)
        for name, first, _, _ in _layout(type(value))  # type: ignore[arg-type]
        if first <= version
    ]


def _plain(value: Any, version: int) -> Any:
    if is_dataclass(value):
        return _plain_fields(value, version)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_plain(item, version) for item in value]
    return value


# -- reading ---------------------------------------------------------------------------------------


@cache
def _layout(kind: type) -> tuple[tuple[str, int, Field[Any], _Reader], ...]:
    """Name, first version, declaration and reader of each field."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (field.name, _since(hints[field.name]), field, _reader(hints[field.name], field.name))
        for field in fields(kind)
    )


def _since(hint: Any) -> int:
    marks = [mark for mark in get_args(hint)[1:] if isinstance(mark, Since)]
    return marks[0].version if marks else OLDEST_VERSION


def _read_fields(kind: type, values: Any, spoken: _Spoken) -> Any:
    layout = [entry for entry in _layout(kind) if entry[1] <= spoken.version]
    if len(values) < len(layout) or (len(values) > len(layout) and not spoken.says_more):
        raise RemoteProtocol(f"{kind.__name__} with {len(values)} fields")
    found = {
        name: read(value, spoken) for (name, _, _, read), value in zip(layout, values, strict=False)
    }
    for name, first, field, _ in _layout(kind):
        if first > spoken.version:
            assert field.default is not MISSING, f"{kind.__name__}.{name} needs a default"
            found[name] = field.default
    return kind(**found)


def _reader(hint: Any, name: str, limit: int | None = None) -> _Reader:
    """What turns a plain value into one of type `hint`, or raises."""
    if isinstance(hint, NewType):
        return _reader(hint.__supertype__, name, limit)
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        limits = [mark.limit for mark in marks if isinstance(mark, AtMost)]
        return _reader(inner, name, limits[0] if limits else limit)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        (inner,) = (kind for kind in get_args(hint) if kind is not NoneType)
        some = _reader(inner, name, limit)
        return lambda value, spoken: None if value is None else some(value, spoken)
    if get_origin(hint) is tuple:
        return _tuple_reader(get_args(hint), name, limit)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum_reader(hint, name)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return _nested_reader(hint, name)
    assert limit is not None, f"{name} has no limit"
    return _plain_reader(hint, name, limit)


def _plain_reader(kind: type, name: str, limit: int) -> _Reader:
    def read(value: Any, _spoken: _Spoken) -> Any:
        size = value if type(value) is int else len(value) if type(value) in (str, bytes) else -1
        if type(value) is not kind or not 0 <= size <= limit:
            raise RemoteProtocol(f"{name}: no {kind.__name__} within {limit}")
        return value

    return read


def _tuple_reader(items: tuple[Any, ...], name: str, limit: int | None) -> _Reader:
    if items[-1] is not Ellipsis:
        readers = [_reader(item, name) for item in items]

        def read_fixed(value: Any, spoken: _Spoken) -> Any:
            if not isinstance(value, tuple) or len(value) != len(readers):
                raise RemoteProtocol(f"{name}: not {len(readers)} values")
            return tuple(read(item, spoken) for read, item in zip(readers, value, strict=True))

        return read_fixed
    assert limit is not None, f"{name} has no limit"
    one = _reader(items[0], name)

    def read_many(value: Any, spoken: _Spoken) -> Any:
        if not isinstance(value, tuple) or len(value) > limit:
            raise RemoteProtocol(f"{name}: not an array of at most {limit}")
        return tuple([one(item, spoken) for item in value])

    return read_many


def _enum_reader(kind: type[enum.Enum], name: str) -> _Reader:
    values = {member.value: member for member in kind}

    def read(value: Any, _spoken: _Spoken) -> Any:
        if type(value) is not int or value not in values:
            raise RemoteProtocol(f"{name}: {value!r} is none of {kind.__name__}")
        return values[value]

    return read


def _nested_reader(kind: type, name: str) -> _Reader:
    def read(value: Any, spoken: _Spoken) -> Any:
        if not isinstance(value, tuple):
            raise RemoteProtocol(f"{name}: not an array")
        return _read_fields(kind, value, spoken)

    return read
