"""Takes the manifests out of a cluster again, and stays until what takes its time to go has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from webhook.errors import ApiError, RightsliceError
from webhook.kube.api import Api
from webhook.manifests.objects import CRD, named, path_of, to_remove

Json = dict[str, Any]
Say = Callable[[str], None]

AGAIN_SECONDS = 0.5
NOT_FOUND = 404

TAKES_TIME = (CRD, "Namespace")
"""Kinds that the API server empties before it lets them go."""

ASKED_AGAIN = "rightslice.dev/removal-asked-again"
"""The annotation that `_ask_again` writes: the resourceVersion it was asked at."""


class UninstallError(RightsliceError):
    """Something did not go in time; the message says what, and where to look."""


async def uninstall(api: Api, objects: Sequence[Json], say: Say, *, with_policies: bool, seconds: float) -> None:
    """Remove what was installed, the hooks first of all, and wait for its end. What is gone already is no error.

    Args:
        objects: The manifests.
        with_policies: Also the CRDs and the namespace, which take their time to go.
        seconds: How long to wait for their end.

    Raises:
        UninstallError: something was still there by then.
        ApiError: the API server refuses something, or does not answer.
    """
    leaving = to_remove(objects, with_policies=with_policies)
    for one in leaving:
        try:
            await api.delete(path_of(one), {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
        else:
            say(f"removed {named(one)}")
    await _wait(api, [one for one in leaving if one["kind"] in TAKES_TIME], seconds)


async def _wait(api: Api, leaving: list[Json], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while leaving := [one for one in leaving if await _is_leaving(api, path_of(one))]:
        if loop.time() > end:
            names = ", ".join(map(named, leaving))
            path = f"{leaving[0]['kind'].lower()} {leaving[0]['metadata']['name']}"
            raise UninstallError(f"waited {seconds:.0f} s for the end of {names}. Look at: kubectl get {path} -o yaml")
        await asyncio.sleep(AGAIN_SECONDS)


async def _is_leaving(api: Api, path: str) -> bool:
    """Is it still there? One that somebody made anew meanwhile is not the one that was removed."""
    try:
        found = await api.get(path)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    if is_forgotten(found):
        await _ask_again(api, path, found)
    return "deletionTimestamp" in found["metadata"]


def is_forgotten(found: Json) -> bool:
    """Is this a CRD whose objects the API server could not list, as happens to a kind that nobody has read yet?

    Its controller (crd_finalizer of Kubernetes) tries once more, at once. Where it reads its own last word too late
    by then, it meets a conflict and waits for a change to come; its own words are no change to it, so that it comes
    back only with the next resync, up to five minutes later.
    """
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Terminating" and one.get("reason") == "InstanceDeletionFailed" for one in conditions)


async def _ask_again(api: Api, path: str, found: Json) -> None:
    """Change the CRD, so that its controller looks. Who may not is left to wait; who came too late need not."""
    version = found["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": version, "annotations": {ASKED_AGAIN: version}}}
    with suppress(ApiError):
        await api.patch(path, change, "merge")
