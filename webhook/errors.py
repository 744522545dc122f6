"""Every error this package raises on purpose.

* RightsliceError
  + QuantityError     a text is not a Kubernetes quantity, or is out of bounds
  + DocumentError     a file is not YAML or JSON that we accept; the message has the place
    + TemplateError   it looks like a template (Helm's, say) that has not been rendered
  + PolicyFileError   a policy cannot be used; the message has the place, the fault and the fix
  + SnapshotError     a cluster snapshot cannot be used; the message has the place and the fix
  + TopologyError     a text is not what `nvidia-smi topo -m` prints; the message has the line
  + ReviewError       a body is not an AdmissionReview that we can judge: HTTP 400
  + UsageError        what GPUs were seen to do cannot be read: from Prometheus, or from a recorded file
  + AccessError       nothing says where the API server is or who we are, or what says so cannot be used
  + ApiError          the API server said no, or something that is no answer of an API server
    + ApiUnreachable  it did not answer

A denied pod is not an error: it is a `Decision` with findings in it.
"""

from __future__ import annotations

from typing import NamedTuple


class RightsliceError(Exception):
    """The root: catch it at an edge, never in the core."""


class SourceLocation(NamedTuple):
    """Where a value stands: file name, and line and column counted from 1 (0: not known)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class QuantityError(RightsliceError):
    """A text is not a Kubernetes quantity, or is out of bounds."""

    def __init__(self, text: object, why: str) -> None:
        super().__init__(f"{why} (found {shorten_text(repr(text))})")


class LocatedError(RightsliceError):
    """A fault in a file: where, what must hold, what was found, and what to write."""

    def __init__(self, place: SourceLocation, sentence: str) -> None:
        super().__init__(f"{place}: {sentence}")
        self.location = place
        self.message = sentence


class DocumentError(LocatedError):
    """A file is not YAML or JSON that we accept."""


class TemplateError(DocumentError):
    """A file looks like a template that has not been rendered."""


class PolicyFileError(LocatedError):
    """A policy cannot be used. `code` is one of the GPU-P codes."""

    def __init__(self, place: SourceLocation, sentence: str, code: str = "GPU-P101") -> None:
        super().__init__(place, sentence)
        self.code = code


class SnapshotError(LocatedError):
    """A cluster snapshot cannot be used."""


class TopologyError(RightsliceError):
    """A text is not what `nvidia-smi topo -m` prints."""


class ReviewError(RightsliceError):
    """A body is not an AdmissionReview that we can judge.

    Attributes:
        sentence: What is wrong, without the object that it is wrong in.
        path: The field of the object, as far as it is known.
    """

    def __init__(self, sentence: str, path: tuple[str | int, ...] = (), *, about: str = "") -> None:
        super().__init__(f"{about}{sentence}")
        self.message, self.path = sentence, path


class UsageError(RightsliceError):
    """What GPUs were seen to do cannot be read; says from where, what must hold and what was found."""


class AccessError(RightsliceError):
    """Where the API server is and who we are cannot be told; says what to give."""


class ApiError(RightsliceError):
    """The API server said no, or something that is no answer of an API server.

    Attributes:
        call: Method and path.
        status: HTTP status: 404 not found, 409 conflict or already there, 410 gone, 429 too many; 0: no answer.
        reason: The API's one word for it, such as NotFound or AlreadyExists; else the HTTP reason.
        message: Its sentence, cut.
        retry_after: Seconds to wait before the next try, as the server asks; 0 if it does not.
    """

    def __init__(self, call: str, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        self.call, self.status, self.reason = call, status, reason
        self.message = shorten_text(message, 1000)
        self.retry_after = retry_after
        answer = f"{status} {reason}".strip() if status else ""
        super().__init__(": ".join(filter(None, (call, answer, self.message))))


class ApiUnreachable(ApiError):  # noqa: N818 - it says what is so, like the words of the API itself
    """The API server did not answer: refused, cut, too slow, or not the server its certificate should name."""

    def __init__(self, call: str, server: str, why: str) -> None:
        super().__init__(call, 0, "", f"no answer from {server} ({why})")


def shorten_text(text: str, limit: int = 60) -> str:
    """Cut what a stranger wrote before it goes into a message."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def quote_text(text: str, limit: int = 60) -> str:
    """Show what a stranger wrote: cut, in quotes, with control characters escaped."""
    return repr(shorten_text(text, limit))
