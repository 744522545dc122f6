"""Claims for all devices that selectors select, on a control plane, and what the scheduler allocates to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.builders import Json
from tests.cluster.dryrun import TIMEOUT_SECONDS, DryRunClient
from tests.cluster.random_claims import API
from tests.filters.selected_devices import claim_of_all, claiming_pod

MOST = 32
"""Requests of a claim, and devices that it may get."""


class SelectorResult(NamedTuple):
    """What a selector does with the devices of a node.

    Attributes:
        text: The selector.
        devices: The names of those that it selects; an error on one of them leaves none.
        fails: Whether it is an error for one.
    """

    text: str
    devices: frozenset[str]
    fails: bool = False


class AllocatedClaim(NamedTuple):
    """What the scheduler makes of a claim.

    Attributes:
        devices: The names of the devices of each request, by its number.
        message: Why its pod is not scheduled; "" if it is.
    """

    devices: Mapping[int, frozenset[str]]
    message: str


def results_by_claim(results: Iterable[SelectorResult]) -> list[list[SelectorResult]]:
    """Group selectors into claims: those that select devices together, each of the others alone."""
    groups: list[list[SelectorResult]] = [[]]
    alone: list[list[SelectorResult]] = []
    for each in results:
        if not each.devices:
            alone.append([each])
            continue
        if len(groups[-1]) == MOST or sum(len(one.devices) for one in (*groups[-1], each)) > MOST:
            groups.append([])
        groups[-1].append(each)
    return [*filter(None, groups), *alone]


async def allocate_claims(
    client: DryRunClient, namespace: str, node: str, groups: Sequence[Sequence[SelectorResult]], prefix: str
) -> list[AllocatedClaim]:
    """Create a claim with each group of selectors, and a pod on a node that uses it; wait for the scheduler."""
    names = [f"{prefix}-{number}" for number in range(len(groups))]
    claims = [
        claim_of_all(name, *(each.text for each in group), namespace=namespace)
        for name, group in zip(names, groups, strict=True)
    ]
    hostname = {"kubernetes.io/hostname": node}
    pods = [claiming_pod(name, namespace, nodeSelector=hostname) for name in names]
    await asyncio.gather(*(client.create(f"{API}/namespaces/{namespace}/resourceclaims", each) for each in claims))
    await asyncio.gather(*(client.create(f"/api/v1/namespaces/{namespace}/pods", each) for each in pods))
    conditions = await _scheduled_conditions(client, namespace, names)
    listed = (await client.send("GET", f"{API}/namespaces/{namespace}/resourceclaims")).body["items"]
    found = {each["metadata"]["name"]: each for each in listed}
    return [_allocated(found[name], conditions[name]) for name in names]


async def _scheduled_conditions(client: DryRunClient, namespace: str, names: Sequence[str]) -> Mapping[str, Json]:
    """Return the condition PodScheduled of each pod, once the scheduler has set it."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            pods = (await client.send("GET", f"/api/v1/namespaces/{namespace}/pods")).body["items"]
            found = {each["metadata"]["name"]: _condition(each) for each in pods}
            if all(found.get(name) for name in names):
                return found
            await asyncio.sleep(0.3)


def _condition(pod: Json) -> Json:
    conditions = pod["status"].get("conditions", ())
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def _allocated(claim: Json, condition: Json) -> AllocatedClaim:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    devices: dict[int, set[str]] = {}
    for each in results:
        devices.setdefault(int(each["request"].removeprefix("request-")), set()).add(each["device"])
    message = "" if condition["status"] == "True" else condition["message"]
    return AllocatedClaim({number: frozenset(some) for number, some in devices.items()}, message)
