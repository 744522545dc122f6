"""Helpers for tests of the guard."""

from __future__ import annotations

from typing import Any

from tests.builders import Json
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.guard import find_bypasses
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.admission import AdmissionRequest
from webhook.model.field_paths import format_path
from webhook.model.pods import parse_pod

KINDS = ("containers", "initContainers", "ephemeralContainers")
OPTIONS = ("allowed", "claiming")
"""Prefixes of the arguments of `find_bypasses` among those of the request."""


def find_violations(
    pod: Json, *, old: Json | None = None, share: bool = False, **request: Any
) -> list[tuple[str, PolicyFinding]]:
    """Find the bypasses of a pod; its GPU requests are read from it."""
    read = parse_pod(pod)
    before = parse_pod(old) if old is not None else None
    admission_request = AdmissionRequest(
        operation=request.pop("operation", "CREATE" if old is None else "UPDATE"),
        group="",
        kind="Pod",
        namespace="team",
        name="pod",
        pod=read,
        load_object=lambda: pod,
        old_pod=before,
        **{key: value for key, value in request.items() if not key.startswith(OPTIONS)},
    )
    allowed = {key: value for key, value in request.items() if key.startswith(OPTIONS)}
    return find_bypasses(
        admission_request, read, gpu_requests_of_pod(read), shares_processes_on_shared_gpu=share, **allowed
    )


def names(found: list[tuple[str, PolicyFinding]]) -> list[str]:
    return [name for name, _ in found]


def places(found: list[tuple[str, PolicyFinding]]) -> list[tuple[str, str]]:
    """Return the bypass names and the fields of findings, as text."""
    return [(name, format_path(finding.path)) for name, finding in found]
