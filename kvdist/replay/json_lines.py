"""Files of one JSON object a line, as gzip or plain text.

Owns:   nothing.
Knows nothing of: what the objects mean.

Whatever a file may hold, reading it gives objects or a FormatError that names the place.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from kvdist.errors import FormatError

Json: TypeAlias = dict[str, Any]

#: Far above any real line; what is longer is taken for another kind of file.
MAX_LINE_CHARACTERS: Final = 1 << 24


def read_json_lines(path: Path) -> Iterator[tuple[int, Json]]:
    """The objects of a file with their line numbers, from 1 on; `.gz` is gzip.

    Raises: FormatError if the file can't be read, or a line is too long or not a JSON object.
    """
    for number, line in _lines(path):
        try:
            row = _decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise FormatError(f"{path}:{number}: not a JSON object")
        yield number, row


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            while line := file.readline(MAX_LINE_CHARACTERS):
                number += 1
                if len(line) == MAX_LINE_CHARACTERS:
                    raise FormatError(f"{path}:{number}: longer than any line we read")
                yield number, line
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 after line {number}") from error
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{path}: broken gzip after line {number}: {error}") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


# Python's own reader takes NaN, which equals nothing and would compare as it likes.
_decoder = json.JSONDecoder(parse_constant=_refuse)
