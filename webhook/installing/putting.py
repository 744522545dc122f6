"""Puts one object into a cluster, so that what decides there is what the manifest says.

Most kinds are applied: what other managers added stays. Of the kinds that decide about admission nothing may stay:
applying unites the set `validationActions` of two managers, so that a mode that only notes would go on denying; and
it leaves the URL of a webhook beside its Service. These kinds are replaced, but for their labels and annotations.
"""

from __future__ import annotations

from typing import Any

from webhook.errors import ApiError
from webhook.installing.finding import ABSENT_STATUSES, find_object
from webhook.kube.api import KubeClient
from webhook.manifests.hooks import APP_NAME, SYSTEM_NAMESPACE
from webhook.manifests.objects import api_path

Json = dict[str, Any]

FIELD_MANAGER = "rightslice-install"
REPLACED_GROUP = "admissionregistration.k8s.io/"
TLS_SECRET_PATH = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{APP_NAME}-tls"
MAX_TRIES = 5
FORBIDDEN, CONFLICT = 403, 409


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
