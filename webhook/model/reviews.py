"""AdmissionReview v1, as an API server sends it: only the fields that we use."""

from __future__ import annotations

from typing import Any

from webhook.model.pods import Pod
from webhook.model.read import Read


class Kind(Read, frozen=True):
    """Group, version and kind of the object."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Resource(Read, frozen=True):
    """Group, version and plural name that the request was made to."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Read, frozen=True):
    """Who asks. `extra` is left out: nothing is decided by it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()


class Asked(Read, frozen=True):
    """One request under review, without the objects."""

    uid: str = ""
    kind: Kind = Kind()
    resource: Resource = Resource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    dry_run: bool = False


class AnyRequest(Asked, frozen=True):
    """A request about an object of any kind, which stays plain data; None where there is none."""

    object: Any = None
    old_object: Any = None


class SentPod(Pod, frozen=True):
    """A Pod that says what it is."""

    kind: str = ""
    api_version: str = ""


class PodRequest(Asked, frozen=True):
    """A request about a Pod, read in one go."""

    object: SentPod | None = None
    old_object: SentPod | None = None


class Envelope(Read, frozen=True):
    """What every review begins with."""

    api_version: str = ""
    kind: str = ""


class AnyReview(Envelope, frozen=True):
    """A review of an object of any kind."""

    request: AnyRequest | None = None


class PodReview(Envelope, frozen=True):
    """A review of a Pod."""

    request: PodRequest | None = None
