"""Flags in groups: a command takes dataclasses, and their fields are its flags.

Owns:   nothing.
Knows nothing of: commands; what flags mean.

typer reads flags off a function's signature alone, one by one.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, with a flag for each field of its parameters that are dataclasses.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Where:
    ...     host: str = "here"
    ...     port: int = 80
    >>> def go(name: str, where: Where) -> None:
    ...     print(name, where)
    >>> signature(grouped(go))
    <Signature (*, name: str, host: str = 'here', port: int = 80)>
    >>> grouped(go)(name="I", host="there", port=8)
    I Where(host='there', port=8)
    """
    kinds = _annotations(command)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    flags: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        flags += _fields(groups[name]) if name in groups else [_flag(parameter, kinds[name])]

    def flat(**told: Any) -> None:
        made = {
            name: kind(**{field.name: told.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**told, **made)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    flat.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return flat


def _fields(kind: Any) -> list[Parameter]:
    kinds = _annotations(kind)
    return [_flag(flag, kinds[name]) for name, flag in signature(kind).parameters.items()]


def _flag(parameter: Parameter, kind: Any) -> Parameter:
    return parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)


def _annotations(of: Any) -> dict[str, Any]:
    found = get_type_hints(of, include_extras=True)
    found.pop("return", None)
    return found
