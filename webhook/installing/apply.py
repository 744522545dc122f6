"""Apply the manifests to a cluster. Every step is reported, and every wait has a deadline.

Most kinds are applied server-side, which keeps fields of other managers. Admission kinds are replaced, except for their
labels and annotations: applying would merge the set `validationActions` of two managers, so that audit mode would keep
denying, and keep the URL of a webhook in addition to its Service.

Delete the manifests from a cluster, and wait until CRDs and namespaces are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus

from webhook.errors import ApiError, RightsliceError
from webhook.installing.facts import (
    BOTH_ANSWERED,
    all_have_ca_bundle,
    is_rejected_by_others,
    probe_webhooks,
)
from webhook.kube.api import KubeClient, find_object
from webhook.manifests.objects import (
    DEPLOYMENT_PATH,
    PART_OF_LABEL,
    SLOW_DELETE_KINDS,
    WEBHOOK_KINDS,
    api_path,
    display_name,
    is_foreign,
    may_be_foreign,
    objects_to_remove,
    sort_for_apply,
)
from webhook.well_known import APP_NAME, GROUP, SYSTEM_NAMESPACE, Json

FIELD_MANAGER = "rightslice-install"
REPLACED_GROUP = "admissionregistration.k8s.io/"
TLS_SECRET_PATH = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{APP_NAME}-tls"
MAX_TRIES = 5

POLL_SECONDS = 0.5
SETTLE_SECONDS = 1.0
"""Time for nodes to learn the address of a ready replica, and for API servers to load a webhook, before a call."""

OTHERS_GRACE_SECONDS = 10.0
"""Time that others may reject the dry-run pod: a new namespace gets its service account late."""


class InstallError(RightsliceError):
    """The installation was not ready in time; the message says what was missing and what to check."""


async def install_manifests(
    api: KubeClient, objects: Sequence[Json], say: Progress, *, seconds: float, dry_run: bool = False
) -> None:
    """Apply all objects, the webhooks last, once a replica is ready; then wait until the webhooks answer a dry-run pod.

    The webhooks are created with the caBundle of that replica, so that no call fails because of its certificate.

    If something else rejects that pod first, this is reported, because it says nothing about the webhooks.

    Args:
        seconds: How long each wait may take.
        dry_run: True to validate only.

    Raises:
        DeletionTimeoutError: Objects of an earlier uninstall are still terminating.
        InstallError: Something was not ready in time.
        ApiError: The API server rejects a request, or does not answer.
    """
    if not dry_run:
        await wait_deleted(api, objects, seconds)
    webhooks = [one for one in objects if one["kind"] in WEBHOOK_KINDS]
    rest = [one for one in objects if one["kind"] not in WEBHOOK_KINDS]
    for one in sort_for_apply(rest):
        await _apply_and_report(api, one, say, dry_run=dry_run)
    if not dry_run:
        await _wait_until(lambda: _replicas_ready(api), seconds, "a replica that is ready", _PODS_HINT)
        await asyncio.sleep(SETTLE_SECONDS)
        say("replicas are ready")
    for one in webhooks:
        await _apply_and_report(api, one, say, dry_run=dry_run)
    if not dry_run:
        say(await _wait_for_webhooks(api, webhooks, seconds))


_PODS_HINT = f"Check: kubectl -n {SYSTEM_NAMESPACE} get pods,events"
_DOCTOR_HINT = "Check: rightslice doctor"
_FAIL_CLOSED_HINT = (
    "Until then GPU pods are rejected. To admit them: rightslice install --mode audit, or rightslice uninstall"
)


async def _wait_for_webhooks(api: KubeClient, configurations: Sequence[Json], seconds: float) -> str:
    """Wait until the webhooks answer, and return the outcome as text."""
    try:
        await _wait_until(lambda: all_have_ca_bundle(api), seconds, "the caBundle of the webhooks", _DOCTOR_HINT)
        await asyncio.sleep(SETTLE_SECONDS)
        return await _wait_for_probe(api, seconds)
    except InstallError as error:
        webhooks = [webhook for one in configurations for webhook in one.get("webhooks", ())]
        rules = [rule for webhook in webhooks if webhook["failurePolicy"] == "Fail" for rule in webhook["rules"]]
        fails_closed = any("pods" in rule["resources"] for rule in rules)
        raise InstallError(f"{error}. {_FAIL_CLOSED_HINT}" if fails_closed else str(error)) from None


async def _apply_and_report(api: KubeClient, one: Json, say: Progress, *, dry_run: bool) -> None:
    """Apply one object; a dry run cannot check objects in a namespace that does not exist yet."""
    try:
        await apply_object(api, one, dry_run=dry_run)
    except ApiError as error:
        if not (dry_run and error.status == HTTPStatus.NOT_FOUND):
            raise
        say(f"{display_name(one)}: not checked, because its namespace does not exist yet")
        return
    say(f"{'checked' if dry_run else 'applied'} {display_name(one)}")


async def _wait_until(is_ready: Callable[[], Awaitable[bool]], seconds: float, what: str, hint: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await is_ready():
        if loop.time() > end:
            raise InstallError(f"waited {seconds:.0f} s for {what}. {hint}")
        await asyncio.sleep(POLL_SECONDS)


async def _wait_for_probe(api: KubeClient, seconds: float) -> str:
    """Send dry-run pods until both webhooks answer, or others keep rejecting them; return the outcome as text."""
    loop = asyncio.get_running_loop()
    end = others_end = loop.time() + seconds
    while BOTH_ANSWERED not in (answer := await probe_webhooks(api)):
        others = is_rejected_by_others(answer)
        others_end = min(others_end, loop.time() + OTHERS_GRACE_SECONDS) if others else end
        if loop.time() > others_end and others:
            return f"the webhooks could not be tested, because the API server rejects the dry-run pod: {answer}"
        if loop.time() > end:
            what = "the webhooks to answer a dry-run pod"
            raise InstallError(f"waited {seconds:.0f} s for {what}, last: {answer}. {_DOCTOR_HINT}")
        await asyncio.sleep(POLL_SECONDS)
    return "the webhooks answer"


async def _replicas_ready(api: KubeClient) -> bool:
    deployment = await api.get(DEPLOYMENT_PATH)
    status = deployment.get("status", {})
    observed: bool = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    wanted: int = min(1, deployment["spec"].get("replicas", 1))
    ready: int = min(status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return observed and ready >= wanted


async def apply_object(api: KubeClient, one: Json, *, dry_run: bool = False) -> None:
    """Apply one object, or replace it if it is an admission kind.

    Raises:
        ApiError: The API server rejects it, or does not answer; 409 if others keep changing it.
    """
    params = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
    if not one["apiVersion"].startswith(REPLACED_GROUP):
        await api.patch(api_path(one), one, "apply", params | {"force": "true"})
        return
    for _ in range(MAX_TRIES - 1):
        try:
            await _replace_object(api, one, params)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
        else:
            return
    await _replace_object(api, one, params)


async def _replace_object(api: KubeClient, one: Json, params: dict[str, str]) -> None:
    path = api_path(one)
    before = await find_object(api, path)
    bundle = await _read_bundle(api) if "webhooks" in one else ""
    if before is None:
        created = one | {"webhooks": trust_bundle(one["webhooks"], bundle)} if bundle else one
        await api.create(path.rpartition("/")[0], created, params)
    else:
        await api.replace(path, build_replacement(one, before, bundle), params)


async def _read_bundle(api: KubeClient) -> str:
    """Return the authorities of the serving certificate, base64; "" if their Secret cannot be read."""
    secret = await find_object(api, TLS_SECRET_PATH, (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN))
    return str(((secret or {}).get("data") or {}).get("ca.crt") or "")


def trust_bundle(webhooks: Sequence[Json], bundle: str) -> list[Json]:
    """Return webhooks with this caBundle, base64."""
    return [{**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": bundle}} for webhook in webhooks]


def build_replacement(one: Json, before: Json, bundle: str) -> Json:
    """Return the manifest with the labels, annotations and caBundles of the existing object.

    Args:
        bundle: The managed caBundle, base64, which is kept in webhooks that have it; "" for none.
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
    existing = before.get("webhooks") or ()
    trusting = {webhook["name"] for webhook in existing if webhook["clientConfig"].get("caBundle") == bundle}
    webhooks = [
        trusted if bundle and webhook["name"] in trusting else webhook
        for webhook, trusted in zip(one["webhooks"], trust_bundle(one["webhooks"], bundle), strict=True)
    ]
    return {**one, "metadata": metadata, "webhooks": webhooks}


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
    """Delete one object and report it; return False if it does not exist, or is another's."""
    found = await find_object(api, api_path(one)) if may_be_foreign(one) else None
    if found is not None and is_foreign(found):
        say(f"kept {display_name(one)}: its label {PART_OF_LABEL} is not {APP_NAME}, so an admin made it")
        return False
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
