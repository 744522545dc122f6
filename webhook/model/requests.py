"""Request: what one review, or one object in a file, asks us to judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

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
