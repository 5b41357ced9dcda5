"""Log lines: for people on a terminal, else one JSON object a line, on standard error.

Owns:   how structlog is set up; to be called once, by whoever owns the process.
Knows nothing of: what is logged.
"""

import logging
import sys
from typing import Any, Literal, TextIO, TypeAlias

import structlog

Format: TypeAlias = Literal["auto", "console", "json"]


def configure(form: Format, level: str, out: TextIO = sys.stderr) -> None:
    """All log lines of this process go to `out`; `auto` is `console` on a terminal."""
    is_console = form == "console" or (form == "auto" and out.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if is_console
        else structlog.processors.JSONRenderer(sort_keys=True)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if is_console else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
