"""AdmissionReview v1, as an API server sends it: only the fields that we use."""

from __future__ import annotations

from typing import Any

from webhook.model.pods import Pod
from webhook.model.read import ApiStruct


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
