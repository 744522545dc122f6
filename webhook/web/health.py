"""Health endpoints: /healthz and /livez for the kubelet, /readyz with one line per check, and /metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl

from webhook.kube.reflector import WatchStatus
from webhook.telemetry.metrics import METRICS_CONTENT_TYPE
from webhook.web.http_messages import HttpRequest, HttpResponse, HttpRoute, strip_control_characters, text_response


class HealthCheck(NamedTuple):
    """One line of `/readyz?verbose`. The process is not ready while a required check fails."""

    name: str
    ok: bool
    message: str
    required: bool = True

    @property
    def line(self) -> str:
        """The line; control characters are removed, because the message may contain untrusted text."""
        return f"[{'+' if self.ok else '-'}]{self.name} {strip_control_characters(self.message)}"


HealthChecks = Callable[[], Sequence[HealthCheck]]
"""Returns the checks of one part of the process."""


def health_routes(checks: HealthChecks, metrics: Callable[[], bytes]) -> dict[str, HttpRoute]:
    """Return the routes; `metrics` returns the text of /metrics. `/readyz?verbose` has one line for each check."""

    def live(_request: HttpRequest) -> HttpResponse:
        return text_response(HTTPStatus.OK, "ok\n")

    def ready(request: HttpRequest) -> HttpResponse:
        results = checks()
        is_ready = all(check.ok for check in results if check.required)
        status, line = (HTTPStatus.OK, "ready") if is_ready else (HTTPStatus.SERVICE_UNAVAILABLE, "not ready")
        if "verbose" not in dict(parse_qsl(request.query, keep_blank_values=True)):
            return text_response(status, "ok\n" if is_ready else "not ready\n")
        return text_response(status, "\n".join([*(check.line for check in results), line, ""]))

    def metrics_page(_request: HttpRequest) -> HttpResponse:
        return text_response(HTTPStatus.OK, metrics().decode(), METRICS_CONTENT_TYPE)

    handlers = {"healthz": live, "livez": live, "readyz": ready, "metrics": metrics_page}
    return {f"/{name}": HttpRoute(name, False, handler) for name, handler in handlers.items()}


def watch_check(status: WatchStatus) -> HealthCheck:
    """Return the check of one watch."""
    message = "not on this server" if status.absent else "synced" if status.synced else "not synced yet"
    if status.error:
        message = f"{message}; {status.error}"
    return HealthCheck(status.name, ok=status.synced and not status.error, message=message, required=False)
