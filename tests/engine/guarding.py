"""Judging a pod by the guard, for tests."""

from __future__ import annotations

from typing import Any

from tests.make import Json
from webhook.engine.asking import asked_by
from webhook.engine.guard import guard
from webhook.engine.remarks import Remark
from webhook.model.paths import dotted
from webhook.model.pods import pod_of
from webhook.model.requests import Request

KINDS = ("containers", "initContainers", "ephemeralContainers")


def look(pod: Json, *, old: Json | None = None, share: bool = False, **request: Any) -> list[tuple[str, Remark]]:
    """Judge a pod; whether it asks for GPUs is read from it."""
    read = pod_of(pod)
    before = pod_of(old) if old is not None else None
    coming = Request(
        operation=request.pop("operation", "CREATE" if old is None else "UPDATE"),
        group="",
        kind="Pod",
        namespace="team",
        name="pod",
        pod=read,
        load=lambda: pod,
        old_pod=before,
        **{key: value for key, value in request.items() if not key.startswith("allowed")},
    )
    allowed = {key: value for key, value in request.items() if key.startswith("allowed")}
    return guard(coming, read, asked_by(read), asks_share=share, **allowed)


def names(found: list[tuple[str, Remark]]) -> list[str]:
    return [name for name, _ in found]


def places(found: list[tuple[str, Remark]]) -> list[tuple[str, str]]:
    """What was found, and where, as people read it."""
    return [(name, dotted(remark.path)) for name, remark in found]
