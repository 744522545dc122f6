"""Random device quotas, claims and pods; and a comparison of our quota charge of claims with an API server's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from tests.cluster.dryrun import TIMEOUT_SECONDS, ApiAnswer, DryRunClient
from tests.cluster.predicted_outcomes import parse_quotas
from tests.controlplane.build import wanted_version
from tests.controlplane.toolchain import release
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.model.claims import ClaimSpec, DeviceClasses, DeviceClassSpec, claim_charge

Json = dict[str, Any]
CHARGES_EXTENDED = release(wanted_version()) >= (1, 36)
"""Whether quotas also charge devices by their extended resource name (DRAExtendedResource; see docs/limits.md)."""

EXTENDED_RESOURCES = {"claimed-a": "", "claimed-b": "example.com/claimed", "claimed-c": "nvidia.com/claimed"}
CLASSES: DeviceClasses = {
    name: DeviceClassSpec(extended if CHARGES_EXTENDED else "") for name, extended in EXTENDED_RESOURCES.items()
}
MISSING_CLASS = "claimed-nowhere"
"""A DeviceClass that does not exist; claims may request it."""

NAMES = (*CLASSES, MISSING_CLASS)
KEYS = (
    *(f"{name}.deviceclass.resource.k8s.io/devices" for name in NAMES),
    *(f"requests.deviceclass.resource.kubernetes.io/{name}" for name in NAMES if CHARGES_EXTENDED),
    *(f"requests.{name}" for name in (*EXTENDED_RESOURCES.values(), "nvidia.com/gpu") if name and CHARGES_EXTENDED),
    "count/resourceclaims.resource.k8s.io", "pods", "requests.cpu", "count/configmaps",
)  # fmt: skip
POD_RESOURCES = (
    *(f"deviceclass.resource.kubernetes.io/{name}" for name in NAMES if CHARGES_EXTENDED),
    *(name for name in (*EXTENDED_RESOURCES.values(), "nvidia.com/gpu") if name),
)
API = "/apis/resource.k8s.io/v1"


async def create_device_classes(client: DryRunClient, namespace: str) -> None:
    """Create the classes, and wait until quotas charge the extended resource name of the last one."""
    for name, each in CLASSES.items():
        spec = {"extendedResourceName": each.extended_resource_name} if each.extended_resource_name else {}
        await client.send("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    last = list(CLASSES)[-1]
    extended = f"requests.{EXTENDED_RESOURCES[last]}"
    key = extended if CHARGES_EXTENDED else f"{last}.deviceclass.resource.k8s.io/devices"
    quota = {"metadata": {"name": "class-known"}, "spec": {"hard": {key: "0"}}}
    await client.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    probe = [{"metadata": {"name": "probe"}, "spec": claim_spec([{"exactly": {"deviceClassName": last}}])}]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await dry_run_claims(client, namespace, probe))[0].status != 403:
            await asyncio.sleep(0.05)


async def dry_run_claims(client: DryRunClient, namespace: str, claims: Sequence[Json]) -> list[ApiAnswer]:
    """Return the API server's dry-run answer for each claim."""
    path = f"{API}/namespaces/{namespace}/resourceclaims"
    return await asyncio.gather(*(client.send("POST", path, claim, dryRun="All") for claim in claims))


def random_quota(random: Random, name: str) -> Json:
    """Return a quota on devices and other resources; some have a scope, which excludes claims."""
    keys = random.sample(KEYS, k=random.choice((1, 2, 3, 5)))
    hard = {key: random.choice(("0", "1", "2", "4", "33", "1k")) for key in keys}
    return {"metadata": {"name": name}, "spec": {"hard": hard, **random.choice(({}, {}, {"scopes": ["Terminating"]}))}}


def random_claim(random: Random, name: str) -> Json:
    """Return a claim with up to three requests."""
    return {
        "metadata": {"name": name},
        "spec": claim_spec([_request(random) for _ in range(random.choice((1, 1, 2, 3)))]),
    }


def random_pod(random: Random, name: str) -> Json:
    """Return a pod with extended resources that device classes may serve."""
    limits = {
        each: random.choice(("0", "1", "2", "3")) for each in random.sample(POD_RESOURCES, k=random.randint(1, 2))
    }
    containers = [{"name": "main", "image": "example.com/app:1", "resources": {"limits": limits}}]
    return {"metadata": {"name": name}, "spec": {"containers": containers}}


def claim_spec(requests: Sequence[Json]) -> Json:
    """Return a claim's spec; its requests are named by their index."""
    return {"devices": {"requests": [{"name": f"r{n}"} | request for n, request in enumerate(requests)]}}


def _request(random: Random) -> Json:
    if random.random() < 0.7:
        return {"exactly": _devices(random)}
    choices = [{"name": f"c{n}"} | _devices(random) for n in range(random.choice((1, 2, 3)))]
    return {"firstAvailable": choices}


def _devices(random: Random) -> Json:
    request: Json = {"deviceClassName": random.choice(NAMES)}
    kind = random.random()
    if kind < 0.2:
        request["allocationMode"] = "All"
    elif kind < 0.8:
        request["count"] = random.choice((1, 2, 3, 40))
    return request


def describe_difference(data: Json, quotas: Sequence[Json], answer: ApiAnswer) -> str:
    """Describe how our answer for a claim differs from the API server's; "" if it does not."""
    charged = claim_charge(msgspec.convert(data["spec"], ClaimSpec), CLASSES)
    ours = [refusal.message for refusal in predict_claim_refusals(charged, parse_quotas(quotas), CLASSES)]
    message = answer.body["message"].partition(" is forbidden: ")[2] if answer.status == 403 else ""
    if answer.status in (201, 403) and (message in ours if message else not ours):
        return ""
    stored = [(item["spec"], item["status"]) for item in quotas]
    return f"\n{stored}\n{data['spec']}\nAPI server: {answer.status} {answer.body.get('message')}\nours: {ours}\n"
