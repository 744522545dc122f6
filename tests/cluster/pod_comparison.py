"""Random namespaces and pods, judged by an API server and by us: every difference, in words."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.cluster.dryrun import NO_LABELS, Answer, DryRuns, dry_runs
from tests.cluster.predicted_outcomes import explains, outcomes, quotas_of, ranges_of
from tests.cluster.random_objects import limit_range, placed, pod, quota, usage

Json = dict[str, Any]
TOGETHER = 20
"""Namespaces that are made, and waited for, at a time."""


class World(NamedTuple):
    """A namespace, and what the API server stored in it."""

    name: str
    ranges: list[Json]
    quotas: list[Json]


class Compared(NamedTuple):
    """How many pods came to each status, and every difference."""

    statuses: dict[int, int]
    differences: list[str]


async def compare(url: str, ca: Path, token: str, *, seed: str, namespaces: int, pods: int) -> Compared:
    """Compare so many pods in each of so many namespaces."""
    random, compared = Random(seed), Compared({}, [])
    async with dry_runs(url, ca, token) as asking:
        run = secrets.token_hex(3)
        await asking.prepare(f"seen-{run}")
        for start in range(0, namespaces, TOGETHER):
            names = [f"world-{run}-{n}" for n in range(start, min(namespaces, start + TOGETHER))]
            worlds = [await new_world(asking, random, name) for name in names]
            await asking.all_seen()
            for world in worlds:
                await _compare_in(world, asking, random, pods, compared)
                await asking.ask("DELETE", f"/api/v1/namespaces/{world.name}")
    return compared


async def new_world(
    asking: DryRuns, random: Random, name: str, *, labels: Mapping[str, str] = NO_LABELS, more: Sequence[Json] = ()
) -> World:
    """Make a namespace with LimitRanges and quotas; those that the API server does not take are left out.

    Args:
        labels: Of the namespace.
        more: Quotas beside the random ones.
    """
    await asking.add_namespace(name, labels)
    path = f"/api/v1/namespaces/{name}"
    ranges = [limit_range(random, f"range-{n}") for n in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    taken = [await asking.ask("POST", f"{path}/limitranges", body) for body in ranges]
    quotas = [quota(random, f"quota-{n}") for n in range(random.choice((0, 0, 1, 1, 2, 3)))]
    quotas += more
    made = [await asking.ask("POST", f"{path}/resourcequotas", body) for body in quotas]
    counted = await asking.counted(name, sum(answer.status == 201 for answer in made))
    for item in counted:
        change = {"status": {"used": usage(random, item["status"].get("used", {}))}}
        item |= (await asking.ask("PATCH", f"{path}/resourcequotas/{item['metadata']['name']}/status", change)).body
    return World(name, [answer.body for answer in taken if answer.status == 201], counted)


async def _compare_in(world: World, asking: DryRuns, random: Random, count: int, compared: Compared) -> None:
    ranges, quotas = ranges_of(world.ranges), quotas_of(world.quotas)
    pods = [placed(random, pod(random, f"pod-{n}")) for n in range(count)]
    for data, answer in zip(pods, await asking.pods(world.name, pods), strict=True):
        compared.statuses[answer.status] = compared.statuses.get(answer.status, 0) + 1
        if not any(explains(outcome, answer) for outcome in outcomes(data, ranges, quotas)):
            compared.differences.append(_told(world, data, answer))


def _told(world: World, data: Json, answer: Answer) -> str:
    """A difference, with all that is needed to see it again."""
    ranges, quotas = ranges_of(world.ranges), quotas_of(world.quotas)
    ours = next(outcomes(data, ranges, quotas))
    stored = {"limitRanges": [item["spec"] for item in world.ranges]} | {
        "quotas": [{"spec": item["spec"], "status": item["status"]} for item in world.quotas]
    }
    said = answer.body.get("message") or answer.body["spec"]
    return f"\n{json.dumps(stored)}\n{json.dumps(data['spec'])}\nAPI server: {answer.status} {said}\nours: {ours}\n"
