"""Bytes to Request, strictly: what is not exactly one AdmissionReview v1 is refused with one sentence.

The sentences are ours from end to end: nothing of the body goes into them, so nothing of it comes back.

The body is decoded once, generically, and everything else is taken from that: the pod, and the plain data that
match conditions and workload templates read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.errors import ReviewError
from webhook.model.pods import Pod, pod_of
from webhook.model.requests import Request
from webhook.model.reviews import AdmissionRequest, AdmissionReview
from webhook.server.jsonbody import decode

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
MAX_UID = 128
"""An API server sends a UUID of 36 characters; the answer repeats it, so it is kept short."""

MAX_NAME = 253
"""The longest name that Kubernetes takes, for objects and for namespaces."""


def read(body: bytes) -> Request:
    """Read one review.

    Raises:
        ReviewError: the body is not one; the message says what must hold, and repeats nothing of the body.
    """
    asked = _envelope(decode(body))
    _check(asked)
    is_pod = asked.kind.kind == "Pod" and not asked.kind.group
    if is_pod and asked.resource.resource != "pods":
        raise ReviewError("request.resource.resource must be pods where request.kind.kind is Pod")
    new = _object(asked, asked.object, is_pod)
    old = _object(asked, asked.old_object, is_pod)
    if asked.object is None and asked.operation in ("CREATE", "UPDATE"):
        raise ReviewError("request.object must be an object, not null, on CREATE and UPDATE")
    return Request(
        operation=asked.operation,
        group=asked.kind.group,
        kind=asked.kind.kind,
        namespace=asked.namespace,
        name=asked.name,
        pod=new,
        load=lambda: asked.object,
        old_pod=old,
        load_old=lambda: asked.old_object,
        sub_resource=asked.sub_resource,
        user=asked.user_info.username,
        groups=asked.user_info.groups,
        uid=asked.uid,
        dry_run=asked.dry_run,
    )


def _envelope(data: Any) -> AdmissionRequest:
    if not isinstance(data, dict):
        raise ReviewError("the body must be a JSON object, an AdmissionReview")
    if data.get("apiVersion") != API_VERSION:
        raise ReviewError(f"apiVersion must be {API_VERSION}")
    if data.get("kind") != KIND:
        raise ReviewError(f"kind must be {KIND}")
    try:
        review = msgspec.convert(data, AdmissionReview)
    except msgspec.ValidationError:
        review = _without_top_nulls(data)
    if review.request is None:
        raise ReviewError("request is missing")
    return review.request


def _without_top_nulls(data: dict[str, Any]) -> AdmissionReview:
    """Nulls of the envelope mean "absent"; those of the objects in it are left to whoever reads them."""
    request = data.get("request")
    if isinstance(request, dict):
        lean = {key: value for key, value in request.items() if value is not None}
        data = {**data, "request": lean}
    try:
        return msgspec.convert(data, AdmissionReview)
    except msgspec.ValidationError:
        raise ReviewError("request must have the fields and types of an AdmissionReview v1") from None


def _check(asked: AdmissionRequest) -> None:
    if not asked.uid:
        raise ReviewError("request.uid is missing")
    if len(asked.uid) > MAX_UID or not (asked.uid.isascii() and asked.uid.isprintable()):
        raise ReviewError(f"request.uid must be at most {MAX_UID} printable characters")
    if asked.operation not in OPERATIONS:
        raise ReviewError("request.operation must be CREATE, UPDATE, DELETE or CONNECT")
    if not asked.kind.kind:
        raise ReviewError("request.kind.kind is missing")
    for text, limit in ((asked.name, MAX_NAME), (asked.namespace, MAX_NAME), (asked.kind.kind, MAX_NAME)):
        if len(text) > limit or not text.isprintable():
            raise ReviewError(f"request.name, namespace and kind must be at most {limit} printable characters")


def _object(asked: AdmissionRequest, data: Any, is_pod: bool) -> Pod | None:
    """Hold an object against the request's kind; give it as a Pod if it is one."""
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ReviewError("request.object and request.oldObject must be objects or null")
    kind = data.get("kind", asked.kind.kind)
    if kind != asked.kind.kind or _group(data.get("apiVersion", "")) not in (asked.kind.group, None):
        raise ReviewError("request.object must be of the kind that request.kind names")
    if not is_pod:
        return None
    try:
        pod = msgspec.convert(data, Pod)
    except msgspec.ValidationError:
        pod = pod_of(data)
    if not pod.metadata.name.isprintable():
        raise ReviewError("request.object.metadata.name must be printable characters")
    return pod


def _group(api_version: object) -> str | None:
    """The group of an apiVersion; None where it says nothing."""
    if not isinstance(api_version, str) or not api_version:
        return None
    group, slash, _version = api_version.partition("/")
    return group if slash else ""
