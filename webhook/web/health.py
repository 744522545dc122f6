"""Is the process alive, and may requests be sent to it? What its parts say, as pages for probes and for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl

from webhook.web.http_messages import HttpRequest, HttpResponse, HttpRoute, text_response


class HealthCheck(NamedTuple):
    """One line of `/readyz?verbose`. `must`: the process is not ready without it."""

    name: str
    ok: bool
    message: str
    required: bool = True


HealthChecks = Callable[[], Sequence[HealthCheck]]
"""What a part of the process says about itself."""


def liveness(_call: HttpRequest) -> HttpResponse:
    """Answering at all is the whole proof."""
    return text_response(HTTPStatus.OK, "ok\n")


def readiness(checks: Sequence[HealthCheck], call: HttpRequest) -> HttpResponse:
    """200 or 503; with `?verbose` one line for each check."""
    good = all(check.ok for check in checks if check.required)
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    if "verbose" not in dict(parse_qsl(call.query, keep_blank_values=True)):
        return text_response(status, "ok\n" if good else "not ready\n")
    lines = [f"[{'+' if check.ok else '-'}]{check.name} {check.message}" for check in checks]
    return text_response(status, "\n".join([*lines, "ready" if good else "not ready", ""]))


def health_routes(checks: HealthChecks, metrics: Callable[[], bytes], kind: bytes) -> dict[str, HttpRoute]:
    """/healthz, /livez, /readyz and /metrics.

    Args:
        checks: What `/readyz` asks.
        metrics: The text of `/metrics`.
        kind: Its media type.
    """

    def ready(call: HttpRequest) -> HttpResponse:
        return readiness(checks(), call)

    def page(_call: HttpRequest) -> HttpResponse:
        return text_response(HTTPStatus.OK, metrics().decode(), kind)

    answers = {"healthz": liveness, "livez": liveness, "readyz": ready, "metrics": page}
    return {f"/{name}": HttpRoute(name, False, answer) for name, answer in answers.items()}
