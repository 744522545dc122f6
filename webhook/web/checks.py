"""Is the process alive, and may requests be sent to it? What its parts say, as pages for probes and for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl

from webhook.web.replies import Call, Reply, text


class Check(NamedTuple):
    """One line of `/readyz?verbose`. `must`: the process is not ready without it."""

    name: str
    good: bool
    says: str
    must: bool = True


Checks = Callable[[], Sequence[Check]]
"""What a part of the process says about itself."""


def alive(_call: Call) -> Reply:
    """Answering at all is the whole proof."""
    return text(HTTPStatus.OK, "ok\n")


def readiness(checks: Sequence[Check], call: Call) -> Reply:
    """200 or 503; with `?verbose` one line for each check."""
    good = all(check.good for check in checks if check.must)
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    if "verbose" not in dict(parse_qsl(call.query, keep_blank_values=True)):
        return text(status, "ok\n" if good else "not ready\n")
    lines = [f"[{'+' if check.good else '-'}]{check.name} {check.says}" for check in checks]
    return text(status, "\n".join([*lines, "ready" if good else "not ready", ""]))
