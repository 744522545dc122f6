"""Delete the manifests from a cluster, and wait until CRDs and namespaces are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus

from webhook.errors import ApiError, RightsliceError
from webhook.kube.api import KubeClient, find_object
from webhook.manifests.objects import SLOW_DELETE_KINDS, api_path, display_name, objects_to_remove
from webhook.well_known import GROUP, Json

DELETION_POLL_SECONDS = 0.5
RETRIGGER_ANNOTATION = f"{GROUP}/deletion-retriggered"
"""Annotation with the resourceVersion at which `_retrigger_deletion` wrote it."""

Progress = Callable[[str], None]


class DeletionTimeoutError(RightsliceError):
    """An object was not deleted in time; the message names it and a command to inspect it."""


async def uninstall_manifests(
    api: KubeClient, objects: Sequence[Json], say: Progress, *, with_policies: bool, seconds: float
) -> None:
    """Delete the installation, webhooks first, and wait until it is gone. Missing objects are not an error.

    Args:
        with_policies: True to delete the CRDs and the namespace too.

    Raises:
        DeletionTimeoutError: An object still exists after that time.
        ApiError: The API server rejects a request, or does not answer.
    """
    removed = objects_to_remove(objects, with_policies=with_policies)
    if not any([await _delete_object(api, one, say) for one in removed]):
        say("nothing to remove")
    await wait_deleted(api, removed, seconds)


async def _delete_object(api: KubeClient, one: Json, say: Progress) -> bool:
    """Delete one object and report it; return False if it does not exist."""
    try:
        answer = await api.delete(api_path(one), {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    metadata = answer.get("metadata") or {}
    if "deletionTimestamp" not in metadata:
        say(f"removed {display_name(one)}")
        return True
    finalizers = "" if one["kind"] in SLOW_DELETE_KINDS else ", ".join(metadata.get("finalizers") or ())
    say(f"deleting {display_name(one)}{f', blocked by the finalizer {finalizers}' if finalizers else ''}")
    return True


async def has_policy_kinds(api: KubeClient, objects: Sequence[Json]) -> bool:
    """Return True if a CRD or the namespace exists, which only an uninstall with policies deletes.

    Raises:
        ApiError: The API server rejects a request, or does not answer.
    """
    for one in objects:
        if one["kind"] in SLOW_DELETE_KINDS and await find_object(api, api_path(one)) is not None:
            return True
    return False


async def wait_deleted(api: KubeClient, objects: Iterable[Json], seconds: float) -> None:
    """Wait until none of the objects is terminating. Objects that are not being deleted do not matter.

    Raises:
        DeletionTimeoutError: An object is still terminating after that time.
        ApiError: The API server rejects a request, or does not answer.
    """
    terminating = [one for one in objects if one["kind"] in SLOW_DELETE_KINDS]
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while terminating := [one for one in terminating if await _is_terminating(api, api_path(one))]:
        if loop.time() > end:
            names = ", ".join(map(display_name, terminating))
            path = f"{terminating[0]['kind'].lower()} {terminating[0]['metadata']['name']}"
            raise DeletionTimeoutError(
                f"waited {seconds:.0f} s for the deletion of {names}. Check: kubectl get {path} -o yaml"
            )
        await asyncio.sleep(DELETION_POLL_SECONDS)


async def _is_terminating(api: KubeClient, path: str) -> bool:
    """Return True if the object exists and is being deleted. One that was created again is another object."""
    found = await find_object(api, path)
    if found is None:
        return False
    if is_deletion_stuck(found):
        await _retrigger_deletion(api, path, found)
    return "deletionTimestamp" in found["metadata"]


def is_deletion_stuck(found: Json) -> bool:
    """Return True for a CRD whose objects the API server could not list, as happens if the kind was never read.

    Its controller (crd_finalizer of Kubernetes) retries once, immediately. If its informer has not seen its own status
    update by then, the retry conflicts and it waits for a change. It ignores its own updates, so the next attempt comes
    with the next resync, up to five minutes later.
    """
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Terminating" and one.get("reason") == "InstanceDeletionFailed" for one in conditions)


async def _retrigger_deletion(api: KubeClient, path: str, found: Json) -> None:
    """Change the CRD, so that its controller retries. Errors are ignored: without permission it takes longer."""
    version = found["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version, "annotations": {RETRIGGER_ANNOTATION: version}}}
    with suppress(ApiError):
        await api.patch(path, change, "merge")
