"""Puts the manifests into a cluster. Every step is told; every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from webhook.errors import ApiError, RightsliceError
from webhook.installing.current_install import ABSENT_STATUSES, find_object
from webhook.installing.probe import BOTH_ANSWERED, all_have_ca_bundle, is_rejected_by_others, probe_webhooks
from webhook.installing.removal import wait_deleted
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH, WEBHOOK_KINDS, api_path, display_name, sort_for_apply
from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE

FIELD_MANAGER = "rightslice-install"
REPLACED_GROUP = "admissionregistration.k8s.io/"
TLS_SECRET_PATH = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{APP_NAME}-tls"
MAX_TRIES = 5
FORBIDDEN, CONFLICT = 403, 409


Json = dict[str, Any]
Progress = Callable[[str], None]

POLL_SECONDS = 0.5
OTHERS_GRACE_SECONDS = 10.0
"""How long others may refuse the pod that is only tried before it is left: a new namespace gets its account late."""

NOT_FOUND = 404


class InstallError(RightsliceError):
    """The installation did not come up in time; the message says what was waited for and where to look."""


async def install_manifests(
    api: KubeClient, objects: Sequence[Json], say: Progress, *, seconds: float, dry_run: bool = False
) -> None:
    """Apply everything, hooks last and only once replicas answer; then wait until the hooks answer a pod.

    Where something else refuses that pod first, it says so, and what: nothing is known of the hooks then.

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
        await wait_deleted(api, objects, seconds)
    hooks = [one for one in objects if one["kind"] in WEBHOOK_KINDS]
    rest = [one for one in objects if one["kind"] not in WEBHOOK_KINDS]
    for one in sort_for_apply(rest):
        await _apply_and_report(api, one, say, dry_run=dry_run)
    if not dry_run:
        await _wait_until(lambda: _replicas_ready(api), seconds, "a replica that is ready", _PODS_HINT)
        say("replicas are ready")
    for one in hooks:
        await _apply_and_report(api, one, say, dry_run=dry_run)
    if not dry_run:
        say(await _wait_for_webhooks(api, hooks, seconds))


_PODS_HINT = f"Look at: kubectl -n {SYSTEM_NAMESPACE} get pods,events"
_DOCTOR_HINT = "Look at: rightslice doctor"
_FAIL_CLOSED_HINT = (
    "Until then GPU pods are refused. To let them pass: rightslice install --mode audit, or rightslice uninstall"
)


async def _wait_for_webhooks(api: KubeClient, hooks: Sequence[Json], seconds: float) -> str:
    """Wait until the hooks answer; what to say of it. Where they do not, what that means for pods is said."""
    try:
        await _wait_until(
            lambda: all_have_ca_bundle(api), seconds, "the hooks to trust the certificate that is served", _DOCTOR_HINT
        )
        return await _wait_for_probe(api, seconds)
    except InstallError as error:
        raise InstallError(f"{error}. {_FAIL_CLOSED_HINT}" if _fails_closed(hooks) else str(error)) from None


def _fails_closed(hooks: Sequence[Json]) -> bool:
    """Does the API server refuse pods while a hook does not answer?"""
    webhooks = [each for one in hooks for each in one.get("webhooks", ()) if each["failurePolicy"] == "Fail"]
    return any("pods" in rule["resources"] for each in webhooks for rule in each["rules"])


async def _apply_and_report(api: KubeClient, one: Json, say: Progress, *, dry_run: bool) -> None:
    """Apply one object; where its namespace or kind is only being made yet, a dry run cannot check it."""
    try:
        await apply_object(api, one, dry_run=dry_run)
    except ApiError as error:
        if not (dry_run and error.status == NOT_FOUND):
            raise
        say(f"{display_name(one)}: not checked, because its namespace is not there yet")
        return
    say(f"{'checked' if dry_run else 'applied'} {display_name(one)}")


async def _wait_until(is_so: Callable[[], Awaitable[bool]], seconds: float, what: str, look: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await is_so():
        if loop.time() > end:
            raise InstallError(f"waited {seconds:.0f} s for {what}. {look}")
        await asyncio.sleep(POLL_SECONDS)


async def _wait_for_probe(api: KubeClient, seconds: float) -> str:
    """Try a pod until both hooks answer it, or others will not let it come to them; what to say of it."""
    loop = asyncio.get_running_loop()
    end = others_end = loop.time() + seconds
    while BOTH_ANSWERED not in (answer := await probe_webhooks(api)):
        others = is_rejected_by_others(answer)
        others_end = min(others_end, loop.time() + OTHERS_GRACE_SECONDS) if others else end
        if loop.time() > others_end and others:
            return f"whether the hooks answer could not be tried: the API server refuses the pod: {answer}"
        if loop.time() > end:
            what = "the hooks to answer a pod that is only tried"
            raise InstallError(f"waited {seconds:.0f} s for {what}, last: {answer}. {_DOCTOR_HINT}")
        await asyncio.sleep(POLL_SECONDS)
    return "the hooks answer"


async def _replicas_ready(api: KubeClient) -> bool:
    """Has the rollout of this very manifest come to a replica that is ready?"""
    found = await api.get(DEPLOYMENT_PATH)
    status = found.get("status", {})
    seen: bool = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
    wanted: int = min(1, found["spec"].get("replicas", 1))
    there: int = min(status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return seen and there >= wanted


async def apply_object(api: KubeClient, one: Json, *, dry_run: bool = False) -> None:
    """Make an object what its manifest says.

    Raises:
        ApiError: the API server refuses it, or does not answer; 409 where others write it again and again.
    """
    params = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
    if not one["apiVersion"].startswith(REPLACED_GROUP):
        await api.patch(api_path(one), one, "apply", params | {"force": "true"})
        return
    for _ in range(MAX_TRIES - 1):
        try:
            await _replace_object(api, one, params)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        else:
            return
    await _replace_object(api, one, params)


async def _replace_object(api: KubeClient, one: Json, params: dict[str, str]) -> None:
    """Replace an object as it was just read, or make it."""
    path = api_path(one)
    before = await find_object(api, path)
    if before is None:
        await api.create(path.rpartition("/")[0], one, params)
        return
    bundle = await _own_ca_bundle(api) if "webhooks" in one else ""
    await api.replace(path, build_replacement(one, before, bundle), params)


def build_replacement(one: Json, before: Json, bundle: str) -> Json:
    """What to replace an object with: the manifest, with labels and annotations of others and what is trusted by us.

    Args:
        one: The manifest.
        before: The object in the cluster.
        bundle: The caBundle that is ours, base64; a webhook that trusts it already goes on trusting it. "": none is.
    """
    metadata = {
        "name": one["metadata"]["name"],
        "resourceVersion": before["metadata"]["resourceVersion"],
        **{
            field: {**(before["metadata"].get(field) or {}), **(one["metadata"].get(field) or {})}
            for field in ("labels", "annotations")
        },
    }
    if "webhooks" not in one:
        return {**one, "metadata": metadata}
    trusting = {hook["name"] for hook in before.get("webhooks") or () if hook["clientConfig"].get("caBundle") == bundle}
    webhooks = [
        {**hook, "clientConfig": {**hook["clientConfig"], "caBundle": bundle}}
        if bundle and hook["name"] in trusting
        else hook
        for hook in one["webhooks"]
    ]
    return {**one, "metadata": metadata, "webhooks": webhooks}


async def _own_ca_bundle(api: KubeClient) -> str:
    """The authorities in the Secret that replicas serve from, base64; "" where there is none to read."""
    secret = await find_object(api, TLS_SECRET_PATH, (*ABSENT_STATUSES, FORBIDDEN))
    return str(((secret or {}).get("data") or {}).get("ca.crt") or "")
