"""Random namespaces and pods, evaluated by an API server and by our code, and a description of every difference."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.cluster.dryrun import NO_LABELS, ApiAnswer, DryRunClient, open_dry_run_client
from tests.cluster.predicted_outcomes import matches_answer, parse_limit_ranges, parse_quotas, predict_outcomes
from tests.cluster.random_objects import limit_range, pod, quota, usage, with_quota_scope_fields

Json = dict[str, Any]
NAMESPACE_BATCH = 20
"""Namespaces that are created in one batch."""


class NamespaceObjects(NamedTuple):
    """A namespace with its LimitRanges and quotas as the API server stored them."""

    name: str
    ranges: list[Json]
    quotas: list[Json]


class ComparisonResult(NamedTuple):
    """The count of pods by HTTP status, and every difference."""

    statuses: dict[int, int]
    differences: list[str]


async def compare_pods(url: str, ca: Path, token: str, *, seed: str, namespaces: int, pods: int) -> ComparisonResult:
    """Compare random pods in random namespaces."""
    random, compared = Random(seed), ComparisonResult({}, [])
    async with open_dry_run_client(url, ca, token) as asking:
        run = secrets.token_hex(3)
        await asking.create_marker_namespace(f"seen-{run}")
        for start in range(0, namespaces, NAMESPACE_BATCH):
            names = [f"world-{run}-{n}" for n in range(start, min(namespaces, start + NAMESPACE_BATCH))]
            worlds = [await create_random_namespace(asking, random, name) for name in names]
            await asking.wait_for_admission_caches()
            for world in worlds:
                await _compare_in_namespace(world, asking, random, pods, compared)
                await asking.send("DELETE", f"/api/v1/namespaces/{world.name}")
    return compared


async def create_random_namespace(
    asking: DryRunClient, random: Random, name: str, *, labels: Mapping[str, str] = NO_LABELS, more: Sequence[Json] = ()
) -> NamespaceObjects:
    """Create a namespace with random LimitRanges and quotas, without those that the API server rejects.

    Args:
        labels: Of the namespace.
        more: Quotas beside the random ones.
    """
    await asking.add_namespace(name, labels)
    path = f"/api/v1/namespaces/{name}"
    ranges = [limit_range(random, f"range-{n}") for n in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    taken = [await asking.send("POST", f"{path}/limitranges", body) for body in ranges]
    quotas = [quota(random, f"quota-{n}") for n in range(random.choice((0, 0, 1, 1, 2, 3)))]
    quotas += more
    made = [await asking.send("POST", f"{path}/resourcequotas", body) for body in quotas]
    counted = await asking.wait_for_quota_status(name, sum(answer.status == 201 for answer in made))
    for item in counted:
        change = {"status": {"used": usage(random, item["status"].get("used", {}))}}
        item |= (await asking.send("PATCH", f"{path}/resourcequotas/{item['metadata']['name']}/status", change)).body
    return NamespaceObjects(name, [answer.body for answer in taken if answer.status == 201], counted)


async def _compare_in_namespace(
    world: NamespaceObjects, asking: DryRunClient, random: Random, count: int, compared: ComparisonResult
) -> None:
    ranges, quotas = parse_limit_ranges(world.ranges), parse_quotas(world.quotas)
    pods = [with_quota_scope_fields(random, pod(random, f"pod-{n}")) for n in range(count)]
    for data, answer in zip(pods, await asking.dry_run_pods(world.name, pods), strict=True):
        compared.statuses[answer.status] = compared.statuses.get(answer.status, 0) + 1
        if not any(matches_answer(outcome, answer) for outcome in predict_outcomes(data, ranges, quotas)):
            compared.differences.append(_describe_difference(world, data, answer))


def _describe_difference(world: NamespaceObjects, data: Json, answer: ApiAnswer) -> str:
    """Describe a difference with everything needed to reproduce it."""
    ranges, quotas = parse_limit_ranges(world.ranges), parse_quotas(world.quotas)
    ours = next(predict_outcomes(data, ranges, quotas))
    stored = {"limitRanges": [item["spec"] for item in world.ranges]} | {
        "quotas": [{"spec": item["spec"], "status": item["status"]} for item in world.quotas]
    }
    said = answer.body.get("message") or answer.body["spec"]
    return f"\n{json.dumps(stored)}\n{json.dumps(data['spec'])}\nAPI server: {answer.status} {said}\nours: {ours}\n"
