"""Takes the manifests out of a cluster again, and stays until what takes its time to go has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from webhook.errors import ApiError, RightsliceError
from webhook.installing.current_install import find_object
from webhook.kube.api import KubeClient
from webhook.manifests.objects import SLOW_DELETE_KINDS, api_path, display_name, objects_to_remove
from webhook.well_known import GROUP

DELETION_POLL_SECONDS = 0.5

RETRIGGER_ANNOTATION = f"{GROUP}/removal-asked-again"
"""The annotation that `_retrigger_deletion` writes: the resourceVersion it was asked at."""


class DeletionTimeoutError(RightsliceError):
    """Something did not go in time; the message says what, and where to look."""


Json = dict[str, Any]
Progress = Callable[[str], None]

NOT_FOUND = 404


async def uninstall_manifests(
    api: KubeClient, objects: Sequence[Json], say: Progress, *, with_policies: bool, seconds: float
) -> None:
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


async def wait_deleted(api: KubeClient, objects: Iterable[Json], seconds: float) -> None:
    """Wait until none of them is on its way out any more. What stays is not waited for.

    Raises:
        LeavingError: something was still going after so long.
        ApiError: the API server refuses something, or does not answer.
    """
    leaving = [one for one in objects if one["kind"] in SLOW_DELETE_KINDS]
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while leaving := [one for one in leaving if await _is_terminating(api, api_path(one))]:
        if loop.time() > end:
            names = ", ".join(map(display_name, leaving))
            path = f"{leaving[0]['kind'].lower()} {leaving[0]['metadata']['name']}"
            raise DeletionTimeoutError(
                f"waited {seconds:.0f} s for the end of {names}. Look at: kubectl get {path} -o yaml"
            )
        await asyncio.sleep(DELETION_POLL_SECONDS)


async def _is_terminating(api: KubeClient, path: str) -> bool:
    """Is it still there? One that somebody made anew meanwhile is not the one that was removed."""
    found = await find_object(api, path)
    if found is None:
        return False
    if is_deletion_stuck(found):
        await _retrigger_deletion(api, path, found)
    return "deletionTimestamp" in found["metadata"]


def is_deletion_stuck(found: Json) -> bool:
    """Is this a CRD whose objects the API server could not list, as happens to a kind that nobody has read yet?

    Its controller (crd_finalizer of Kubernetes) tries once more, at once. Where it reads its own last word too late
    by then, it meets a conflict and waits for a change to come; its own words are no change to it, so that it comes
    back only with the next resync, up to five minutes later.
    """
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Terminating" and one.get("reason") == "InstanceDeletionFailed" for one in conditions)


async def _retrigger_deletion(api: KubeClient, path: str, found: Json) -> None:
    """Change the CRD, so that its controller looks. Who may not is left to wait; who came too late need not."""
    version = found["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version, "annotations": {RETRIGGER_ANNOTATION: version}}}
    with suppress(ApiError):
        await api.patch(path, change, "merge")
