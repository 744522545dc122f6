"""Bytes to Request, strictly: what is not exactly one AdmissionReview v1 is refused with one sentence.

The sentences are ours from end to end: nothing of the body goes into them, so nothing of it comes back.

There are two ways of reading. `parse_review` takes any body apart exactly. `parse_api_server_review` is for a body
whose sender says it
is an API server: such a body has been decoded and encoded by Go a moment ago, so it has no key twice and no
number out of bounds, and a pod in it is read in one go, for a third of the price. Anything unusual goes the exact
way. Whoever claims to be an API server and is none spares himself a complaint about his own body, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from webhook.errors import ReviewError
from webhook.model.admission import (
    AdmissionRequest,
    ObjectReview,
    ObjectReviewRequest,
    PodReview,
    PodReviewRequest,
    ReviewRequest,
    TypedPod,
)
from webhook.model.pods import Pod, parse_pod
from webhook.server.strict_json import decode_strict_json

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
MAX_UID = 128
"""An API server sends a UUID of 36 characters; the answer repeats it, so it is kept short."""

MAX_NAME = 253
"""The longest name that Kubernetes takes, for objects and for namespaces."""

_pod_review = msgspec.json.Decoder(PodReview)


def parse_review(body: bytes) -> AdmissionRequest:
    """Read one review, whoever sent it.

    Raises:
        ReviewError: the body is not one; the message says what must hold, and repeats nothing of the body.
    """
    asked = _decode_any_request(decode_strict_json(body))
    _check_request(asked)
    new, old = _convert_pod(asked, asked.object), _convert_pod(asked, asked.old_object)
    return _build_request(asked, new, old, lambda: asked.object, lambda: asked.old_object)


def parse_api_server_review(body: bytes) -> AdmissionRequest:
    """Read one review that an API server sent. The whole object is decoded only when `load` asks for it.

    Raises:
        ReviewError: the body is not a review; from `load` too.
    """
    asked = _decode_pod_request(body)
    if asked is None:
        return parse_review(body)
    _check_request(asked)
    whole = _LazyObjects(body)
    return _build_request(asked, asked.object, asked.old_object, whole.load, whole.load_old)


class _LazyObjects:
    """The objects of a body as plain data, decoded once and only when they are asked for."""

    __slots__ = ("_asked", "_body")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._asked: ObjectReviewRequest | None = None

    def load(self) -> Any:
        """The object."""
        return self._request().object

    def load_old(self) -> Any:
        """The old object."""
        return self._request().old_object

    def _request(self) -> ObjectReviewRequest:
        if self._asked is None:
            self._asked = _decode_any_request(decode_strict_json(self._body))
        return self._asked


def _decode_pod_request(body: bytes) -> PodReviewRequest | None:
    """The request if it is plainly about a pod."""
    try:
        review = _pod_review.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    asked = review.request
    if asked is None or review.api_version != API_VERSION or review.kind != KIND:
        return None
    if not _is_pod_request(asked) or not _is_plain_pod(asked.object) or not _is_plain_pod(asked.old_object):
        return None
    return asked


def _is_plain_pod(pod: TypedPod | None) -> bool:
    return pod is None or (pod.kind == "Pod" and pod.api_version == "v1" and pod.metadata.name.isprintable())


def _decode_any_request(data: Any) -> ObjectReviewRequest:
    if not isinstance(data, dict):
        raise ReviewError("the body must be a JSON object, an AdmissionReview")
    if data.get("apiVersion") != API_VERSION:
        raise ReviewError(f"apiVersion must be {API_VERSION}")
    if data.get("kind") != KIND:
        raise ReviewError(f"kind must be {KIND}")
    try:
        review = msgspec.convert(data, ObjectReview)
    except msgspec.ValidationError:
        review = _convert_without_nulls(data)
    if review.request is None:
        raise ReviewError("request is missing")
    return review.request


def _convert_without_nulls(data: dict[str, Any]) -> ObjectReview:
    """Nulls of the envelope mean "absent"; those of the objects in it are left to whoever reads them."""
    request = data.get("request")
    if isinstance(request, dict):
        lean = {key: value for key, value in request.items() if value is not None}
        data = {**data, "request": lean}
    try:
        return msgspec.convert(data, ObjectReview)
    except msgspec.ValidationError:
        raise ReviewError("request must have the fields and types of an AdmissionReview v1") from None


def _check_request(asked: ObjectReviewRequest | PodReviewRequest) -> None:
    if not asked.uid:
        raise ReviewError("request.uid is missing")
    if len(asked.uid) > MAX_UID or not (asked.uid.isascii() and asked.uid.isprintable()):
        raise ReviewError(f"request.uid must be at most {MAX_UID} printable characters")
    if asked.operation not in OPERATIONS:
        raise ReviewError("request.operation must be CREATE, UPDATE, DELETE or CONNECT")
    if asked.object is None and asked.operation in ("CREATE", "UPDATE"):
        raise ReviewError("request.object must be an object, not null, on CREATE and UPDATE")
    if not asked.kind.kind:
        raise ReviewError("request.kind.kind is missing")
    if _is_pod_request(asked) and asked.resource.resource != "pods":
        raise ReviewError("request.resource.resource must be pods where request.kind.kind is Pod")
    for text in (asked.name, asked.namespace, asked.kind.kind):
        if len(text) > MAX_NAME or not text.isprintable():
            raise ReviewError(f"request.name, namespace and kind must be at most {MAX_NAME} printable characters")


def _is_pod_request(asked: ReviewRequest) -> bool:
    return asked.kind.kind == "Pod" and not asked.kind.group


def _convert_pod(asked: ReviewRequest, data: Any) -> Pod | None:
    """Hold an object against the request's kind; give it as a Pod if it is one."""
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ReviewError("request.object and request.oldObject must be objects or null")
    kind = data.get("kind", asked.kind.kind)
    if kind != asked.kind.kind or _api_group(data.get("apiVersion", "")) not in (asked.kind.group, None):
        raise ReviewError("request.object must be of the kind that request.kind names")
    if not _is_pod_request(asked):
        return None
    try:
        pod = msgspec.convert(data, Pod)
    except msgspec.ValidationError:
        pod = parse_pod(data)
    if not pod.metadata.name.isprintable():
        raise ReviewError("request.object.metadata.name must be printable characters")
    return pod


def _api_group(api_version: object) -> str | None:
    """The group of an apiVersion; None where it says nothing."""
    if not isinstance(api_version, str) or not api_version:
        return None
    group, slash, _version = api_version.partition("/")
    return group if slash else ""


def _build_request(
    asked: ReviewRequest, new: Pod | None, old: Pod | None, load: Callable[[], Any], load_old: Callable[[], Any]
) -> AdmissionRequest:
    return AdmissionRequest(
        operation=asked.operation,
        group=asked.kind.group,
        kind=asked.kind.kind,
        namespace=asked.namespace,
        name=asked.name,
        pod=new,
        load_object=load,
        old_pod=old,
        load_old_object=load_old,
        sub_resource=asked.sub_resource,
        user=asked.user_info.username,
        groups=asked.user_info.groups,
        user_uid=asked.user_info.uid,
        uid=asked.uid,
        dry_run=asked.dry_run,
    )
