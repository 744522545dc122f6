"""AdmissionReview v1, as an API server sends it: only the fields that we use."""

from __future__ import annotations

from typing import Any

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
    groups: tuple[str, ...] = ()


class AdmissionRequest(Read, frozen=True):
    """One request under review. `object` and `old_object` stay plain data, None where there is none."""

    uid: str = ""
    kind: Kind = Kind()
    resource: Resource = Resource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: Any = None
    old_object: Any = None
    dry_run: bool = False


class AdmissionReview(Read, frozen=True):
    """The envelope."""

    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None
