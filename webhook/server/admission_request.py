"""Parses an AdmissionReview v1 strictly; anything else is rejected with a message that contains nothing of the body.

`parse_review` checks any body exactly. `parse_api_server_review` is for a client that claims to be an API server: Go
has just encoded the body, so it has no duplicate keys and no numbers out of range, and a pod is decoded directly, in a
third of the time. Anything unusual is parsed exactly. A client that makes a false claim only misses an error about its
own body.

Strict JSON decoding: no duplicate keys, no changed numbers, no extensions of JSON.

Fast decoders silently keep the last of two equal keys, and orjson converts integers beyond 64 bits to floats. Both are
detected without checking each key: if encoding the decoded data yields the same text, there was no duplicate key and no
changed number. That holds for the text of API servers, with or without Go's escapes of `<`, `>` and `&`. Any other text
is decoded again by a slow and exact parser.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isinf
from typing import Any, NoReturn

import msgspec
import orjson

from webhook.errors import ReviewError
from webhook.model.admission import (
    AdmissionRequest,
    LargePod,
    LargeReview,
    LargeReviewRequest,
    ObjectReview,
    ObjectReviewRequest,
    PodReview,
    PodReviewRequest,
    ReviewRequest,
    TypedPod,
)
from webhook.model.pods import ObjectMeta, Pod, PodSpec, parse_pod

REVIEW_API_VERSION = "admission.k8s.io/v1"
REVIEW_KIND = "AdmissionReview"
OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
MAX_UID = 128
"""API servers send a UUID of 36 characters. The response repeats the uid, so its length is limited."""

MAX_NAME = 253
"""Kubernetes' limit for names of objects and namespaces."""

LARGE_SHARE = 3
"""An old object that takes more than this part of a large review is large itself."""

_pod_review = msgspec.json.Decoder(PodReview)
_large_review = msgspec.json.Decoder(LargeReview)


def parse_review(body: bytes) -> AdmissionRequest:
    """Parse a review from any client.

    Raises:
        ReviewError: the body is not a review; the message contains nothing of the body.
    """
    review = _decode_any_request(decode_strict_json(body))
    _check_request(review)
    new, old = _convert_pod(review, review.object), _convert_pod(review, review.old_object)
    return _build_request(review, new, old, lambda: review.object, lambda: review.old_object)


def parse_api_server_review(body: bytes) -> AdmissionRequest:
    """Parse a review from an API server. The complete object is decoded only when `load_object` is called.

    Raises:
        ReviewError: the body is not a review; `load_object` raises it too.
    """
    review = _decode_pod_request(body)
    if review is None:
        return parse_review(body)
    _check_request(review)
    objects = _LazyObjects(body)
    return _build_request(review, review.object, review.old_object, objects.load, objects.load_old)


def parse_large_review(body: bytes) -> AdmissionRequest:
    """Parse a review with too many values to evaluate: of its pod only the fields by which exemptions select.

    The request has no pod if the old object takes as much of the body: then the pod was as large before.

    Raises:
        ReviewError: the body is not a review.
    """
    try:
        envelope = _large_review.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ReviewError("the body has too many values, or is not an AdmissionReview") from None
    review = envelope.request
    if review is None or envelope.api_version != REVIEW_API_VERSION or envelope.kind != REVIEW_KIND:
        raise ReviewError(f"the body must be an {REVIEW_KIND} of {REVIEW_API_VERSION} with a request")
    _check_request(review)
    was_large = len(review.old_object) > len(body) // LARGE_SHARE
    pod = _read_large_pod(review.object) if _is_pod_request(review) and not was_large else None
    return _build_request(review, pod, None, lambda: None, lambda: None)


def _read_large_pod(text: msgspec.Raw) -> Pod:
    try:
        large = msgspec.json.decode(text, type=LargePod)
        labels = msgspec.json.decode(large.metadata.labels, type=dict[str, str]) if large.metadata.has_labels else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Pod(ObjectMeta(), PodSpec())
    metadata = ObjectMeta(name=large.metadata.name, generate_name=large.metadata.generate_name, labels=labels)
    return Pod(metadata, PodSpec(service_account_name=large.spec.service_account_name))


class _LazyObjects:
    """The objects of a body as plain data, decoded on first use."""

    __slots__ = ("_body", "_review")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._review: ObjectReviewRequest | None = None

    def load(self) -> Any:
        """Return the object."""
        return self._request().object

    def load_old(self) -> Any:
        """Return the old object."""
        return self._request().old_object

    def _request(self) -> ObjectReviewRequest:
        if self._review is None:
            self._review = _decode_any_request(decode_strict_json(self._body))
        return self._review


def _decode_pod_request(body: bytes) -> PodReviewRequest | None:
    try:
        envelope = _pod_review.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    review = envelope.request
    if review is None or envelope.api_version != REVIEW_API_VERSION or envelope.kind != REVIEW_KIND:
        return None
    if not _is_pod_request(review) or not _is_plain_pod(review.object) or not _is_plain_pod(review.old_object):
        return None
    return review


def _is_plain_pod(pod: TypedPod | None) -> bool:
    return pod is None or (pod.kind == "Pod" and pod.api_version == "v1" and pod.metadata.name.isprintable())


def _decode_any_request(data: Any) -> ObjectReviewRequest:
    if not isinstance(data, dict):
        raise ReviewError("the body must be a JSON object, an AdmissionReview")
    if data.get("apiVersion") != REVIEW_API_VERSION:
        raise ReviewError(f"apiVersion must be {REVIEW_API_VERSION}")
    if data.get("kind") != REVIEW_KIND:
        raise ReviewError(f"kind must be {REVIEW_KIND}")
    try:
        review = msgspec.convert(data, ObjectReview)
    except msgspec.ValidationError:
        review = _convert_without_nulls(data)
    if review.request is None:
        raise ReviewError("request is missing")
    return review.request


def _convert_without_nulls(data: dict[str, Any]) -> ObjectReview:
    request = data.get("request")
    if isinstance(request, dict):
        data = {**data, "request": {key: value for key, value in request.items() if value is not None}}
    try:
        return msgspec.convert(data, ObjectReview)
    except msgspec.ValidationError:
        raise ReviewError("request must have the fields and types of an AdmissionReview v1") from None


def _check_request(review: ObjectReviewRequest | PodReviewRequest | LargeReviewRequest) -> None:
    if not review.uid:
        raise ReviewError("request.uid is missing")
    if len(review.uid) > MAX_UID or not (review.uid.isascii() and review.uid.isprintable()):
        raise ReviewError(f"request.uid must be at most {MAX_UID} printable characters")
    if review.operation not in OPERATIONS:
        raise ReviewError("request.operation must be CREATE, UPDATE, DELETE or CONNECT")
    if review.object is None and review.operation in ("CREATE", "UPDATE"):
        raise ReviewError("request.object must be an object, not null, on CREATE and UPDATE")
    if not review.kind.kind:
        raise ReviewError("request.kind.kind is missing")
    if _is_pod_request(review) and review.resource.resource != "pods":
        raise ReviewError("request.resource.resource must be pods if request.kind.kind is Pod")
    for text in (review.name, review.namespace, review.kind.kind):
        if len(text) > MAX_NAME or not text.isprintable():
            raise ReviewError(f"request.name, namespace and kind must be at most {MAX_NAME} printable characters")


def _is_pod_request(review: ReviewRequest) -> bool:
    return review.kind.kind == "Pod" and not review.kind.group


def _convert_pod(review: ReviewRequest, data: Any) -> Pod | None:
    """Check that an object has the request's kind, and return it if it is a pod."""
    if data is None:
        return None
    if not isinstance(data, dict):
        raise ReviewError("request.object and request.oldObject must be objects or null")
    kind, api_version = data.get("kind", review.kind.kind), data.get("apiVersion")
    group = review.kind.group
    if isinstance(api_version, str) and api_version:
        group = api_version.partition("/")[0] if "/" in api_version else ""
    if kind != review.kind.kind or group != review.kind.group:
        raise ReviewError("request.object must be of the kind in request.kind")
    if not _is_pod_request(review):
        return None
    try:
        pod = msgspec.convert(data, Pod)
    except msgspec.ValidationError:
        pod = parse_pod(data)
    if not pod.metadata.name.isprintable():
        raise ReviewError("request.object.metadata.name must be printable characters")
    return pod


def _build_request(
    review: ReviewRequest, new: Pod | None, old: Pod | None, load: Callable[[], Any], load_old: Callable[[], Any]
) -> AdmissionRequest:
    return AdmissionRequest(
        operation=review.operation,
        group=review.kind.group,
        kind=review.kind.kind,
        namespace=review.namespace,
        name=review.name,
        pod=new,
        load_object=load,
        old_pod=old,
        load_old_object=load_old,
        sub_resource=review.sub_resource,
        user=review.user_info.username,
        groups=review.user_info.groups,
        user_uid=review.user_info.uid,
        uid=review.uid,
        dry_run=review.dry_run,
    )


GO_ESCAPES = ((b"&", b"\\u0026"), (b"<", b"\\u003c"), (b">", b"\\u003e"))
"""The HTML escapes of Go's `encoding/json`, which are on by default."""

MAX_DIGITS = 20
INTEGERS = range(-(1 << 63), 1 << 64)
"""Larger ones are floats in Go, so no API server sends one."""

_EMPTY = "the body must not be empty: it must be an AdmissionReview in JSON"
_NOT_UTF8 = "the body must be UTF-8 without a byte order mark"
_NOT_UNICODE = "the body must be valid Unicode: it contains an unpaired surrogate"
_BROKEN = "the body must be valid JSON: syntax error at line {line}, column {column}"
_MORE = "the body must be one JSON document: extra data at line {line}, column {column}"
_TOO_DEEP = "the body must be nested at most 250 levels deep"
_NO_NUMBER = "numbers in the body must be valid JSON: NaN and Infinity are not"
_TOO_LARGE = "numbers in the body must be integers of at most 64 bits, or floats below 1e308"
_KEY_TWICE = "the body must not have duplicate keys in an object"


def decode_strict_json(body: bytes) -> Any:
    """Decode one document.

    Raises:
        ReviewError: it is empty, not JSON, not UTF-8, nested too deeply, has a number out of range, or has a duplicate
            key. Each case has its own message.
    """
    try:
        data = orjson.loads(body)
        again = orjson.dumps(data)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        raise ReviewError(_explain_decode_error(body)) from None
    if again == body or _escape_like_go(again) == body.rstrip(b"\n"):
        return data
    return _decode_exactly(body)


def _escape_like_go(text: bytes) -> bytes:
    for plain, escaped in GO_ESCAPES:
        text = text.replace(plain, escaped)
    return text


def _explain_decode_error(body: bytes) -> str:
    """Return why the fast decoder rejects a body, by decoding it with the exact parser."""
    try:
        json.dumps(_decode_exactly(body), ensure_ascii=False).encode()
    except ReviewError as error:
        return str(error)
    except UnicodeEncodeError:
        return _NOT_UNICODE
    except RecursionError:
        pass
    return _TOO_DEEP


def _decode_exactly(body: bytes) -> Any:
    if not body.strip():
        raise ReviewError(_EMPTY)
    try:
        return json.loads(
            body.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_finite_float,
            parse_int=_parse_bounded_int,
        )
    except UnicodeDecodeError:
        raise ReviewError(_NOT_UTF8) from None
    except json.JSONDecodeError as error:
        sentence = _MORE if error.msg == "Extra data" else _BROKEN
        starts_with_mark = error.doc.startswith("\ufeff")
        message = _NOT_UTF8 if starts_with_mark else sentence.format(line=error.lineno, column=error.colno)
        raise ReviewError(message) from None
    except RecursionError:
        raise ReviewError(_TOO_DEEP) from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ReviewError(_KEY_TWICE)
    return members


def _reject_constant(_constant: str) -> NoReturn:
    raise ReviewError(_NO_NUMBER)


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ReviewError(_TOO_LARGE)
    return number


def _parse_bounded_int(text: str) -> int:
    if len(text) > MAX_DIGITS or int(text) not in INTEGERS:
        raise ReviewError(_TOO_LARGE)
    return int(text)
