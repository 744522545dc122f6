"""The pages that every process has: for the kubelet, for Prometheus and for people."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from webhook.web.checks import HealthChecks, liveness, readiness
from webhook.web.replies import HttpRequest, HttpResponse, HttpRoute, text_response


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
