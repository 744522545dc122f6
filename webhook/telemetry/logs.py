"""Structured logs: one JSON object per line on standard error, with a constant message and keys.

Values are truncated and escaped, so that no name can forge a second line or control a terminal. Environment variables
of containers are never logged.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger

MAX_VALUE_LENGTH = 2000
MAX_STACK_LENGTH = 16_000


StructuredLogger = FilteringBoundLogger


def make_logger(level: str = "info", stream: TextIO | None = None) -> StructuredLogger:
    """Create the logger of a process.

    Args:
        level: debug, info, warning or error.
        stream: Standard error by default.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _format_exception,
            _render_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    return cast("StructuredLogger", logger)


def _format_exception(_logger: object, _name: str, values: EventDict) -> EventDict:
    """Replace an exception by its stack trace and type. Its message is left out: it may contain values of a pod."""
    error = values.pop("exc_info", None)
    if isinstance(error, BaseException):
        frames = "".join(traceback.format_tb(error.__traceback__))
        values["exception"] = f"{frames}{type(error).__name__}"[-MAX_STACK_LENGTH:]
    return values


def _render_json(_logger: object, _name: str, values: EventDict) -> str:
    shown = {key: _sanitize_value(key, value) for key, value in values.items()}
    return orjson.dumps(shown, default=str).decode()


def _sanitize_value(key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_sanitize_value(key, item) for item in value]
    if not isinstance(value, str):
        return value
    text = value if key == "exception" else value[:MAX_VALUE_LENGTH]
    return text.encode("ascii", "backslashreplace").decode().replace("\x7f", "\\x7f")
