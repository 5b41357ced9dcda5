"""Strategies for every message, by the types and limits that are declared."""

import enum
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from kvdist.connector.codec import KINDS
from kvdist.connector.messages import AtMost

#: Lists are short here; their limits are tried one by one.
_SHORT = 4


def any_message() -> st.SearchStrategy[Any]:
    """One of any kind, with anything that its fields may be."""
    return st.one_of([of_kind(kind) for kind in KINDS])


def of_kind(kind: type) -> st.SearchStrategy[Any]:
    """Messages of this kind."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: _of(hints[field.name]) for field in fields(kind)})


def _of(hint: Any, limit: int = 0) -> st.SearchStrategy[Any]:
    if isinstance(hint, NewType):
        return _of(hint.__supertype__, limit)
    if get_origin(hint) is Annotated:
        inner, *marks = get_args(hint)
        limits = [mark.limit for mark in marks if isinstance(mark, AtMost)]
        return _of(inner, limits[0] if limits else limit)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        (inner,) = (kind for kind in get_args(hint) if kind is not NoneType)
        return st.none() | _of(inner, limit)
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            return st.lists(_of(items[0]), max_size=min(limit, _SHORT)).map(tuple)
        return st.tuples(*(_of(item) for item in items))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return of_kind(hint)
    plain: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(0, limit),
        str: st.text(max_size=min(limit, 20)),
        bytes: st.binary(max_size=min(limit, 20)),
    }
    return plain[hint]
