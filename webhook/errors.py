"""The exceptions of this package.

* RightsliceError
  + QuantityError      a text is not a Kubernetes quantity, or is out of bounds
  + LocatedError       an error in a file, with its location
    + DocumentError    the file is not valid YAML or JSON
      + TemplateError  the file looks like an unrendered template, such as Helm's
    + PolicyFileError  the policy is invalid
    + SnapshotError    the cluster snapshot is invalid
  + TopologyError      a text is not the output of `nvidia-smi topo -m`
  + SolverError        the solver of integer programs is not installed
  + JsonPathError      a JSONPath is invalid, or does not fit the data
  + PageQueryError     the address of a console's page has an invalid parameter: HTTP 400
  + TrialError         what was pasted into the console cannot be evaluated: HTTP 400
  + ReviewError        a request body is not a valid AdmissionReview: HTTP 400
  + UsageError         GPU usage cannot be read from Prometheus or from a recorded file
  + AccessError        the address or the credentials of the API server are missing or invalid
  + ApiError           the API server returned an error, or an invalid response
    + ApiUnreachable   the API server did not answer

A denied pod is not an error: it is a `Decision` with findings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import errorcode
from ssl import SSLError
from typing import NamedTuple


class RightsliceError(Exception):
    """Base class. Catch it in commands and servers, not in the core."""


class SourceLocation(NamedTuple):
    """Location of a value: file name, and line and column counted from 1 (0 if unknown)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class QuantityError(RightsliceError):
    """A text is not a Kubernetes quantity, or is out of bounds.

    Attributes:
        is_quantity: True if the API server reads it, and only our bounds do not.
    """

    def __init__(self, text: object, why: str, *, is_quantity: bool = False) -> None:
        super().__init__(f"{why} (found {quote_text(text)})")
        self.is_quantity = is_quantity


class LocatedError(RightsliceError):
    """An error in a file: where, what must hold, what was found, and what to write."""

    def __init__(self, location: SourceLocation, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location
        self.message = message


class DocumentError(LocatedError):
    """A file is not valid YAML or JSON."""


class TemplateError(DocumentError):
    """A file looks like an unrendered template."""


class PolicyFileError(LocatedError):
    """A policy is invalid. `code` is one of the GPU-P codes; `path` is the field, "" for the whole document."""

    def __init__(self, location: SourceLocation, message: str, code: str = "GPU-P101", path: str = "") -> None:
        super().__init__(location, message)
        self.code, self.path = code, path


class SnapshotError(LocatedError):
    """A cluster snapshot is invalid."""


class TopologyError(RightsliceError):
    """A text is not the output of `nvidia-smi topo -m`."""


class SolverError(RightsliceError):
    """The solver of integer programs is not installed."""


class JsonPathError(RightsliceError):
    """A JSONPath is invalid, or does not fit the data. The message says what must hold and what was found."""


class PageQueryError(RightsliceError):
    """The address of a page has an invalid parameter. Says what must hold and what was found."""


class TrialError(RightsliceError):
    """Objects or policies that were pasted into the console cannot be evaluated."""


class ReviewError(RightsliceError):
    """A request body is not a valid AdmissionReview.

    Attributes:
        message: The problem, without the name of the object.
        path: The field of the object, as far as it is known.
    """

    def __init__(self, message: str, path: tuple[str | int, ...] = (), *, about: str = "") -> None:
        super().__init__(f"{about}{message}")
        self.message, self.path = message, path


class UsageError(RightsliceError):
    """GPU usage cannot be read. The message says from where, what must hold and what was found."""


class AccessError(RightsliceError):
    """The address or the credentials of the API server are missing or invalid. The message says what to provide."""


class ApiError(RightsliceError):
    """The API server returned an error, or an invalid response.

    Attributes:
        call: Method and path.
        status: HTTP status: 404 not found, 409 conflict or exists, 410 gone, 429 too many; 0 without an answer.
        reason: The API's reason, such as NotFound or AlreadyExists, or else the HTTP reason.
        message: The API's message, shortened.
        retry_after: Seconds to wait before the next try, if the server sets it; otherwise 0.
    """

    def __init__(self, call: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        self.call, self.status, self.reason = call, status, reason
        self.message = shorten_text(message, 1000)
        self.retry_after = retry_after
        answer = f"{status} {reason}".strip() if status else ""
        super().__init__(": ".join(filter(None, (call, answer, self.message))))


class ApiUnreachable(ApiError):  # noqa: N818 - named like the reasons of the API
    """The API server did not answer: connection refused or closed, timeout, or a wrong certificate."""

    def __init__(self, call: str, server: str, why: str) -> None:
        super().__init__(call, 0, "", f"no answer from {server} ({why})")


def shorten_text(text: str, limit: int = 60) -> str:
    """Shorten untrusted text for a message."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def abbreviate_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_problem(error: OSError) -> str:
    """Return why a file or folder was not read, as the end of a sentence about it."""
    if str(error.filename or "").startswith(("http:/", "https:/")):
        return "must be a file or folder, found a URL. Download it first: curl -fsSLO URL"
    return f"cannot be read: {error.strerror or error}"


def connection_problem(error: Exception) -> str:
    """Return why a connection failed: in the words of the operating system, or those of the error."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    number = 0 if isinstance(inner, SSLError) else getattr(inner, "errno", None) or 0
    return os.strerror(number).lower() if number in errorcode else str(inner) or type(inner).__name__


def quote_text(value: object, limit: int = 60) -> str:
    """Quote an untrusted value for a message: shortened, with control characters escaped."""
    return repr(shorten_text(value, limit)) if isinstance(value, str) else shorten_text(repr(value), limit)
