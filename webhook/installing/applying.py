"""Puts the manifests into a cluster. Every step is told; every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from webhook.errors import ApiError, ApiUnreachable, RightsliceError
from webhook.installing.leaving import until_gone
from webhook.installing.putting import put
from webhook.kube.api import Api
from webhook.manifests.hooks import NAME, NAMESPACE
from webhook.manifests.objects import DEPLOYMENT, HOOKS, in_order, named
from webhook.model.records import ANSWERED, PROBE

Json = dict[str, Any]
Say = Callable[[str], None]

AGAIN_SECONDS = 0.5
NOT_FOUND = 404


class InstallError(RightsliceError):
    """The installation did not come up in time; the message says what was waited for and where to look."""


async def install(api: Api, objects: Sequence[Json], say: Say, *, seconds: float, dry_run: bool = False) -> None:
    """Apply everything, hooks last and only once replicas answer; then wait until the hooks answer a pod.

    Args:
        objects: The manifests.
        seconds: How long each of the waits may take.
        dry_run: The API server checks what it can without storing anything, and stores nothing.

    Raises:
        LeavingError: what an uninstall left on its way out, and would take this along, did not go in time.
        InstallError: something did not come up in time.
        ApiError: the API server refuses something, or does not answer.
    """
    if not dry_run:
        await until_gone(api, objects, seconds)
    hooks = [one for one in objects if one["kind"] in HOOKS]
    rest = [one for one in objects if one["kind"] not in HOOKS]
    for one in in_order(rest):
        await _apply(api, one, say, dry_run=dry_run)
    if not dry_run:
        await _until(lambda: _replicas_ready(api), seconds, "a replica that is ready", _LOOK)
        say("replicas are ready")
    for one in hooks:
        await _apply(api, one, say, dry_run=dry_run)
    if not dry_run:
        await _until(lambda: hooks_answer(api), seconds, "the hooks to answer a pod that is only tried", _DOCTOR)
        say("the hooks answer")


_LOOK = f"Look at: kubectl -n {NAMESPACE} get pods,events"
_DOCTOR = "Look at: rightslice doctor"


async def _apply(api: Api, one: Json, say: Say, *, dry_run: bool) -> None:
    """Apply one object; where its namespace or kind is only being made yet, a dry run cannot check it."""
    try:
        await put(api, one, dry_run=dry_run)
    except ApiError as error:
        if not (dry_run and error.status == NOT_FOUND):
            raise
        say(f"{named(one)}: not checked, because its namespace is not there yet")
        return
    say(f"{'checked' if dry_run else 'applied'} {named(one)}")


async def _until(is_so: Callable[[], Awaitable[bool]], seconds: float, what: str, look: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await is_so():
        if loop.time() > end:
            raise InstallError(f"waited {seconds:.0f} s for {what}. {look}")
        await asyncio.sleep(AGAIN_SECONDS)


async def _replicas_ready(api: Api) -> bool:
    """Has the rollout of this very manifest come to a replica that is ready?"""
    found = await api.get(DEPLOYMENT)
    status = found.get("status", {})
    seen: bool = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    wanted: int = min(1, found["spec"].get("replicas", 1))
    there: int = min(status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return seen and there >= wanted


_PROBE: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "rightslice-probe", "namespace": "default", "annotations": {PROBE: "who answers?"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "rightslice/probe",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {
                    "requests": {"cpu": "1m", "memory": "1Mi"},
                    "limits": {"cpu": "1m", "memory": "1Mi"},
                },
            }
        ],
    },
}
"""A pod that any namespace takes, restricted or not. It is only ever tried."""


async def who_answers(api: Api) -> str:
    """What came back for a pod that is only tried: our own sentence, or why it was not us.

    Raises:
        ApiUnreachable: the API server does not answer.
    """
    try:
        await api.create("/api/v1/namespaces/default/pods", _PROBE, {"dryRun": "All"})
    except ApiUnreachable:
        raise
    except ApiError as error:
        return error.message
    return "the pod was let in without a word of ours"


async def hooks_answer(api: Api) -> bool:
    """Do both hooks answer a pod that is only tried? One that trusts nobody yet is not tried: it would be passed by."""
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        found = await api.get(f"/apis/admissionregistration.k8s.io/v1/{plural}/{NAME}")
        if not all(hook["clientConfig"].get("caBundle") for hook in found["webhooks"]):
            return False
    return f"{ANSWERED}: validate and mutate" in await who_answers(api)
