"""Admission requests: as evaluated, and as an API server sends them in an AdmissionReview v1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.batch import QueueingSystem
from webhook.model.pods import Pod
from webhook.model.volcano_queues import QueuedPodSet

MAX_LABELS_LENGTH = 64 * 1024
"""Characters of labels that are read from a pod that is too large to evaluate."""


class AdmissionRequest(msgspec.Struct, frozen=True):
    """An object to evaluate, from the API server or from a file.

    Attributes:
        operation: "CREATE", "UPDATE", "DELETE" or "CONNECT".
        group: API group of the kind, "" for core.
        namespace: "" for cluster-scoped objects.
        name: "" before the API server has generated one.
        pod: The object as a Pod, if it is one.
        load_object: Returns the object as plain data, for workload templates and CEL; cached by the caller.
        old_pod: The stored Pod on UPDATE.
        load_old_object: Returns the old object as plain data, or None.
        sub_resource: For example "ephemeralcontainers" or "resize"; "" for the object itself.
        user_uid: "" if unknown.
        uid: The uid of the request; "" offline.
        unknown_parts: For a future pod of a workload: what of it is not known yet, for people.
        replicas: For a future pod of a workload: how many like it are to run at once.
        queued: For a future pod of a workload that no queue has charged yet: the pods that it will charge together.
        charged_by: For a future pod of a workload: the queueing system that charges its template when the workload is
            created, or `NO_SYSTEM`. None for a pod, which does not show all of that.
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
    unknown_parts: str = ""
    replicas: int = 1
    queued: QueuedPodSet | None = None
    charged_by: QueueingSystem | None = None

    @property
    def siblings(self) -> int:
        """The other pods that start together with a future pod, as its queue charges them."""
        return 0 if self.queued is None else max(0, self.queued.pods - 1)


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
    """The requester. `extra` is not used."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


class ReviewRequest(ApiStruct, frozen=True):
    """A request without its objects."""

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
    """A request about an object of any kind, as plain data; None if there is none."""

    object: Any = None
    old_object: Any = None


class TypedPod(Pod, frozen=True):
    """A Pod with its kind and apiVersion."""

    kind: str = ""
    api_version: str = ""


class PodReviewRequest(ReviewRequest, frozen=True):
    """A request about a Pod, decoded in one step."""

    object: TypedPod | None = None
    old_object: TypedPod | None = None


class ReviewEnvelope(ApiStruct, frozen=True):
    """The type of a review."""

    api_version: str = ""
    kind: str = ""


class ObjectReview(ReviewEnvelope, frozen=True):
    """A review of an object of any kind."""

    request: ObjectReviewRequest | None = None


class PodReview(ReviewEnvelope, frozen=True):
    """A review of a Pod."""

    request: PodReviewRequest | None = None


class LargeReviewRequest(ReviewRequest, frozen=True):
    """A request whose objects are too large to decode; empty text if there is none."""

    object: msgspec.Raw = msgspec.Raw()
    old_object: msgspec.Raw = msgspec.Raw()


class LargeReview(ReviewEnvelope, frozen=True):
    """A review that is too large to evaluate."""

    request: LargeReviewRequest | None = None


class LargePodMetadata(ApiStruct, frozen=True):
    """Metadata by which exemptions select, and for messages."""

    name: str = ""
    generate_name: str = ""
    labels: msgspec.Raw = msgspec.Raw()

    @property
    def has_labels(self) -> bool:
        """True if there are labels that are worth reading; more match no exemption."""
        return 0 < len(self.labels) <= MAX_LABELS_LENGTH


class LargePodSpec(ApiStruct, frozen=True):
    """The part of a specification by which exemptions select."""

    service_account_name: str = ""


class LargePod(ApiStruct, frozen=True):
    """The part of a pod by which exemptions select."""

    metadata: LargePodMetadata = LargePodMetadata()
    spec: LargePodSpec = LargePodSpec()
