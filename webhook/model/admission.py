"""AdmissionReview v1, as an API server sends it: only the fields that we use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import Pod


class AdmissionRequest(msgspec.Struct, frozen=True):
    """One object on its way in, whoever brings it.

    Attributes:
        operation: "CREATE", "UPDATE", "DELETE" or "CONNECT".
        group: API group of the object's kind, "" for core.
        kind: Kind of the object, for example "Pod" or "Deployment".
        namespace: Namespace of the request ("" for cluster objects).
        name: Object name; "" before the API server has made one.
        pod: The object read as a Pod if `kind` is Pod, else None.
        load: Gives the whole object as plain data (for workload templates and CEL); cached by the caller.
        old_pod: The stored Pod on UPDATE, if `kind` is Pod.
        load_old: Gives the old object as plain data, or None.
        sub_resource: "" for the object itself, for example "ephemeralcontainers" or "resize".
        user: Username of the requester.
        groups: Groups of the requester.
        user_uid: Uid of the requester; "" where the API server knows none.
        uid: The request's uid; "" offline.
        dry_run: True if nothing will be stored.
    """

    operation: str
    group: str
    kind: str
    namespace: str
    name: str
    pod: Pod | None
    load_object: Callable[[], Any]
    old_pod: Pod | None = None
    load_old_object: Callable[[], Any] = lambda: None
    sub_resource: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    user_uid: str = ""
    uid: str = ""
    dry_run: bool = False


class GroupVersionKind(ApiStruct, frozen=True):
    """Group, version and kind of the object."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(ApiStruct, frozen=True):
    """Group, version and plural name that the request was made to."""

    group: str = ""
    version: str = ""
    resource: str = ""


class RequestUser(ApiStruct, frozen=True):
    """Who asks. `extra` is left out: nothing is decided by it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


class ReviewRequest(ApiStruct, frozen=True):
    """One request under review, without the objects."""

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: RequestUser = RequestUser()
    dry_run: bool = False


class ObjectReviewRequest(ReviewRequest, frozen=True):
    """A request about an object of any kind, which stays plain data; None where there is none."""

    object: Any = None
    old_object: Any = None


class TypedPod(Pod, frozen=True):
    """A Pod that says what it is."""

    kind: str = ""
    api_version: str = ""


class PodReviewRequest(ReviewRequest, frozen=True):
    """A request about a Pod, read in one go."""

    object: TypedPod | None = None
    old_object: TypedPod | None = None


class ReviewEnvelope(ApiStruct, frozen=True):
    """What every review begins with."""

    api_version: str = ""
    kind: str = ""


class ObjectReview(ReviewEnvelope, frozen=True):
    """A review of an object of any kind."""

    request: ObjectReviewRequest | None = None


class PodReview(ReviewEnvelope, frozen=True):
    """A review of a Pod."""

    request: PodReviewRequest | None = None
