"""Random DeviceClasses, quotas on devices, and claims; and what our charge of a claim says beside an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from tests.cluster.dryrun import WITHIN, Answer, DryRuns
from tests.cluster.predicted_outcomes import quotas_of
from tests.controlplane.build import wanted_version
from tests.controlplane.toolchain import release
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.model.claims import ClaimSpec, DeviceClasses, claim_charge

Json = dict[str, Any]
BY_NAME = release(wanted_version()) >= (1, 36)
"""Are devices also charged by what containers call them? (DRAExtendedResource; docs/limits.md has its limit.)"""

NAMED = {"claimed-a": "", "claimed-b": "example.com/claimed", "claimed-c": "nvidia.com/claimed"}
CLASSES: DeviceClasses = {name: extended if BY_NAME else "" for name, extended in NAMED.items()}
NOWHERE = "claimed-nowhere"
"""A class that nobody made: claims may ask for it all the same."""

NAMES = (*CLASSES, NOWHERE)
KEYS = (
    *(f"{name}.deviceclass.resource.k8s.io/devices" for name in NAMES),
    *(f"requests.deviceclass.resource.kubernetes.io/{name}" for name in NAMES if BY_NAME),
    *(f"requests.{name}" for name in ("example.com/claimed", "nvidia.com/claimed", "nvidia.com/gpu") if BY_NAME),
    "count/resourceclaims.resource.k8s.io", "pods", "requests.cpu", "count/configmaps",
)  # fmt: skip
API = "/apis/resource.k8s.io/v1"


async def add_classes(asking: DryRuns, namespace: str) -> None:
    """Make the classes, and wait until quotas know what they are called: the last one's name is charged then."""
    for name, extended in CLASSES.items():
        spec = {"extendedResourceName": extended} if extended else {}
        await asking.ask("POST", f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    last = list(CLASSES)[-1]
    key = f"requests.{CLASSES[last]}" if BY_NAME else f"{last}.deviceclass.resource.k8s.io/devices"
    quota = {"metadata": {"name": "known"}, "spec": {"hard": {key: "0"}}}
    await asking.made(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    probe = [{"metadata": {"name": "probe"}, "spec": spec_of([{"exactly": {"deviceClassName": last}}])}]
    async with asyncio.timeout(WITHIN):
        while (await made(asking, namespace, probe))[0].status != 403:
            await asyncio.sleep(0.05)


async def made(asking: DryRuns, namespace: str, claims: Sequence[Json]) -> list[Answer]:
    """What the API server would make of each claim."""
    path = f"{API}/namespaces/{namespace}/resourceclaims"
    return await asyncio.gather(*(asking.ask("POST", path, claim, dryRun="All") for claim in claims))


def quota(random: Random, name: str) -> Json:
    """A quota on devices, and on other things; now and then with a scope, where no claim counts."""
    keys = random.sample(KEYS, k=random.choice((1, 2, 3, 5)))
    hard = {key: random.choice(("0", "1", "2", "4", "33", "1k")) for key in keys}
    return {"metadata": {"name": name}, "spec": {"hard": hard, **random.choice(({}, {}, {"scopes": ["Terminating"]}))}}


def claim(random: Random, name: str) -> Json:
    """A claim of up to three requests."""
    return {"metadata": {"name": name}, "spec": spec_of([_request(random) for _ in range(random.choice((1, 1, 2, 3)))])}


def spec_of(requests: Sequence[Json]) -> Json:
    """A claim's specification; its requests are named by their place."""
    return {"devices": {"requests": [{"name": f"r{n}"} | request for n, request in enumerate(requests)]}}


def _request(random: Random) -> Json:
    if random.random() < 0.7:
        return {"exactly": _devices(random)}
    choices = [{"name": f"c{n}"} | _devices(random) for n in range(random.choice((1, 2, 3)))]
    return {"firstAvailable": choices}


def _devices(random: Random) -> Json:
    asked: Json = {"deviceClassName": random.choice(NAMES)}
    kind = random.random()
    if kind < 0.2:
        asked["allocationMode"] = "All"
    elif kind < 0.8:
        asked["count"] = random.choice((1, 2, 3, 40))
    return asked


def difference(data: Json, quotas: Sequence[Json], answer: Answer) -> str:
    """How we and the API server differ about a claim; "" where we do not."""
    charged = claim_charge(msgspec.convert(data["spec"], ClaimSpec), CLASSES)
    ours = [refusal.message for refusal in predict_claim_refusals(charged, quotas_of(quotas), CLASSES)]
    said = answer.body["message"].partition(" is forbidden: ")[2] if answer.status == 403 else ""
    if answer.status in (201, 403) and (said in ours if said else not ours):
        return ""
    stored = [(one["spec"], one["status"]) for one in quotas]
    return f"\n{stored}\n{data['spec']}\nAPI server: {answer.status} {answer.body.get('message')}\nours: {ours}\n"
