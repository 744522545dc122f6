"""Takes the manifests out of a cluster again, and stays until what takes its time to go has gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webhook.errors import ApiError
from webhook.installing.finding import find_object
from webhook.installing.leaving import wait_deleted
from webhook.kube.api import KubeClient
from webhook.manifests.objects import SLOW_DELETE_KINDS, display_name, api_path, objects_to_remove

Json = dict[str, Any]
Progress = Callable[[str], None]

NOT_FOUND = 404


async def uninstall_manifests(api: KubeClient, objects: Sequence[Json], say: Progress, *, with_policies: bool, seconds: float) -> None:
    """Remove what was installed, the hooks first of all, and wait for its end. What is gone already is no error.

    Args:
        objects: The manifests.
        with_policies: Also the CRDs and the namespace, which take their time to go.
        seconds: How long to wait for their end.

    Raises:
        LeavingError: something was still there by then.
        ApiError: the API server refuses something, or does not answer.
    """
    leaving = objects_to_remove(objects, with_policies=with_policies)
    found = [await _delete_object(api, one, say) for one in leaving]
    if not any(found):
        say("there was nothing to remove")
    await wait_deleted(api, leaving, seconds)


async def _delete_object(api: KubeClient, one: Json, say: Progress) -> bool:
    """Remove one object and say so; False: there is none."""
    try:
        left = await api.delete(api_path(one), {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    say(_deletion_message(one, left.get("metadata") or {}))
    return True


def _deletion_message(one: Json, left: Json) -> str:
    """What became of an object, by the metadata of what the API server answered."""
    if "deletionTimestamp" not in left:
        return f"removed {display_name(one)}"
    holding = "" if one["kind"] in SLOW_DELETE_KINDS else ", ".join(left.get("finalizers") or ())
    return f"asked {display_name(one)} to go{f', held by {holding}' if holding else ''}"


async def has_policy_kinds(api: KubeClient, objects: Sequence[Json]) -> bool:
    """Is anything there that only an uninstall with its policies takes out: a CRD, or the namespace?

    Raises:
        ApiError: the API server refuses to tell, or does not answer.
    """
    for one in objects:
        if one["kind"] in SLOW_DELETE_KINDS and await find_object(api, api_path(one)) is not None:
            return True
    return False
