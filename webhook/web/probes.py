"""The pages that every process has: for the kubelet, for Prometheus and for people."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from webhook.web.checks import Checks, alive, readiness
from webhook.web.replies import Call, Reply, Route, text


def probes(checks: Checks, metrics: Callable[[], bytes], kind: bytes) -> dict[str, Route]:
    """/healthz, /livez, /readyz and /metrics.

    Args:
        checks: What `/readyz` asks.
        metrics: The text of `/metrics`.
        kind: Its media type.
    """

    def ready(call: Call) -> Reply:
        return readiness(checks(), call)

    def page(_call: Call) -> Reply:
        return text(HTTPStatus.OK, metrics().decode(), kind)

    answers = {"healthz": alive, "livez": alive, "readyz": ready, "metrics": page}
    return {f"/{name}": Route(name, False, answer) for name, answer in answers.items()}
