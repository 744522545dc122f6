"""Random namespaces and pods, asked of an API server past our webhook and through it: whatever it must never do.

In every namespace pods are right-sized. In every other one their GPUs are accounted too, under a quota.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import add
from random import Random
from typing import NamedTuple

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.dryrun import WITHIN, Answer, DryRuns, dry_runs
from tests.cluster.nodes import demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_comparison import TOGETHER, World, new_world
from tests.cluster.predicted_outcomes import quotas_of
from tests.cluster.random_objects import placed, pod
from tests.example_cluster import view_of
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.pods import parse_pod
from webhook.model.pools import unit_milli
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import quota_matches_pod

UNSENT = "rightslice.test/unsent"
"""Pods with this label are not sent to us."""

SIZED = {"rightslice.dev/right-sizing": "enforced"}
ACCOUNTED = {**SIZED, "rightslice.test/accounted": "true"}
GPU, MILLI = "nvidia.com/gpu", f"requests.{ACCOUNTING_RESOURCE}"
SLICES = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")
WHOLE = 1000
FLEET = view_of(*demo_nodes()).fleet
LATE = re.compile("deadline exceeded|Timeout|took too long to arrive|arrived after its timeout")
OFTEN = 128
"""Enough that each order is met, but for one time in ten million: the rarest comes one time in eight."""

TRIES = 5
"""How often a pod is sent again whose review nobody answered in time: that is the machine's, not a verdict."""


class Tried(NamedTuple):
    """What was tried.

    Attributes:
        pods: All of them.
        taken: Those that the API server takes without us.
        changed: Those that came out in another shape.
        weighed: Those whose GPUs were weighed.
        over: Those that are over the accounting quota, and would be in their old shape too.
        breaks: What must not be, each with all that is needed to see it again.
    """

    pods: int = 0
    taken: int = 0
    changed: int = 0
    weighed: int = 0
    over: int = 0
    breaks: tuple[str, ...] = ()

    def plus(self, other: Tried) -> Tried:
        """Both."""
        return Tried(*map(add, self, other))


async def try_worlds(plane: Plane, *, seed: str, worlds: int, pods: int) -> Tried:
    """Try so many random pods in each of so many random namespaces."""
    random = Random(seed)
    return await _try(plane, random, worlds, lambda: [some_pod(random, f"pod-{n}") for n in range(pods)])


async def try_pods(plane: Plane, pods: Sequence[Json], *, seed: str, worlds: int) -> Tried:
    """Try these pods in two namespaces without limits, and in so many random ones."""
    return await _try(plane, Random(seed), 2 + worlds, lambda: pods, calm=2)


async def _try(plane: Plane, random: Random, count: int, pods: Callable[[], Sequence[Json]], calm: int = 0) -> Tried:
    """Every second namespace is one in which GPUs are accounted; the first `calm` ones have no limits but that."""
    tried, run, left = Tried(), secrets.token_hex(3), iter(range(count))
    async with dry_runs(plane.url, plane.ca, plane.token) as asking:
        await asking.prepare(f"seen-{run}")
        while numbers := list(islice(left, TOGETHER)):
            worlds = {n: await _world(asking, random, f"safe-{run}-{n}", bool(n % 2), n < calm) for n in numbers}
            await asking.all_seen()
            await seen_by_us(asking, f"mark-{run}-{numbers[0]}")
            for n, world in worlds.items():
                tried = tried.plus(await _try_in(world, asking, pods(), accounted=bool(n % 2)))
                await asking.ask("DELETE", f"/api/v1/namespaces/{world.name}")
    return tried


async def _world(asking: DryRuns, random: Random, name: str, accounted: bool, calm: bool) -> World:
    most = "1M" if calm else random.choice(("0", "143", "500", "1k", "2k", "4000"))
    accounting = {"metadata": {"name": "accounting"}, "spec": {"hard": {MILLI: most}}}
    labels, more = (ACCOUNTED, [accounting]) if accounted else (SIZED, [])
    if not calm:
        return await new_world(asking, random, name, labels=labels, more=more)
    await asking.add_namespace(name, labels)
    for quota in more:
        await asking.made(f"/api/v1/namespaces/{name}/resourcequotas", quota)
    return World(name, [], await asking.counted(name, len(more)))


async def seen_by_us(asking: DryRuns, name: str) -> None:
    """Wait until our webhook has seen every namespace, LimitRange and quota made so far.

    Each kind comes to it by one ordered watch. So two marks are made last, of which each keeps a pod from being
    right-sized.
    """
    none = dict.fromkeys(SLICES, "0")
    marks = {
        "limitranges": {"limits": [{"type": "Container", "max": none, "default": none}]},
        "resourcequotas": {"hard": {f"requests.{GPU}": "100"}},
    }
    for plural, spec in marks.items():
        space = f"{name}-{plural}"
        await asking.add_namespace(space, SIZED)
        await asking.made(f"/api/v1/namespaces/{space}/{plural}", {"metadata": {"name": "mark"}, "spec": spec})
        async with asyncio.timeout(WITHIN):
            while not _kept(await _probe(asking, space)):
                await asyncio.sleep(0.02)
        await asking.ask("DELETE", f"/api/v1/namespaces/{space}")


async def _probe(asking: DryRuns, space: str) -> Answer:
    (answer,) = await asking.pods(space, [make_pod("probe").namespace(space).needs("8Gi").gpus(1).build()])
    return answer


def _kept(answer: Answer) -> bool:
    return answer.status == 201 and sum(weights(answer)) == WHOLE


def some_pod(random: Random, name: str) -> Json:
    """A pod that an API server may or may not take; most could be right-sized, and some weigh their GPUs themselves."""
    data = placed(random, pod(random, name))
    if random.random() < 0.7:
        _ask_for_one(random, data)
    if random.random() < 0.2:
        _side(random.choice(data["spec"]["containers"]), "limits")[ACCOUNTING_RESOURCE] = random.choice(
            ("0", "1", "5000")
        )
    return data


def _ask_for_one(random: Random, data: Json) -> None:
    """One GPU in one container or two, and in no other; and how much memory it needs."""
    data["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": random.choice(("4Gi", "8Gi", "15Gi", "60Gi"))}
    containers = data["spec"]["containers"]
    plain = random.random() < 0.5
    for container in [*containers, *data["spec"].get("initContainers", ())]:
        if plain:
            container.pop("resources", None)
        for side in container.get("resources", {}).values():
            for key in [key for key in side if key.startswith("nvidia.com/")]:
                del side[key]
    for container in random.sample(containers, k=min(len(containers), random.choice((1, 1, 1, 2)))):
        _side(container, "limits")[GPU] = random.choice(("1", "1", "1.0", "1000m"))


def _side(container: Json, side: str) -> Json:
    found: Json = container.setdefault("resources", {}).setdefault(side, {})
    return found


async def _try_in(world: World, asking: DryRuns, pods: Sequence[Json], *, accounted: bool) -> Tried:
    past = await asking.pods(world.name, map(unsent, pods))
    through = await _answered(asking, world.name, pods)
    breaks: list[str] = []
    for data, without, ours in zip(pods, past, through, strict=True):
        broken = list(_broken(world, without, ours, accounted=accounted))
        left = [what for what in broken if not await _by_chance(asking, world, data, without, ours, what)]
        breaks += [_told(world, data, without, ours, what) for what in left]
    taken = [(without, ours) for without, ours in zip(past, through, strict=True) if without.status == 201]
    return Tried(
        pods=len(pods),
        taken=len(taken),
        changed=sum(ours.status == 201 and gpus(ours) != gpus(without) for without, ours in taken),
        weighed=sum(accounted and ours.status == 201 and any(weights(ours)) for _, ours in taken),
        over=sum(is_over(ours) for _, ours in taken),
        breaks=tuple(breaks),
    )


def unsent(data: Json) -> Json:
    """The pod with the label by which it is not sent to us."""
    return {**data, "metadata": {**data["metadata"], "labels": {**data["metadata"].get("labels", {}), UNSENT: "true"}}}


async def _answered(asking: DryRuns, namespace: str, pods: Sequence[Json]) -> list[Answer]:
    """What becomes of each pod with us; asked again where nobody answered in time."""
    answers = await asking.pods(namespace, pods)
    for _ in range(TRIES):
        late = [place for place, answer in enumerate(answers) if LATE.search(str(answer.body.get("message", "")))]
        again = await asking.pods(namespace, [pods[place] for place in late])
        for place, answer in zip(late, again, strict=True):
            answers[place] = answer
    return answers


def _broken(world: World, without: Answer, ours: Answer, *, accounted: bool) -> Iterator[str]:
    """Everything that must not be."""
    if ours.status != 201:
        if not _is_refused_anyway(world, without, ours):
            yield "refused with us only"
        return
    if accounted and declared(ours) != weights(ours):
        yield f"weighed {declared(ours)}, and weighs {weights(ours)}"
    if without.status == 201:
        each = list(zip(weights(without), weights(ours), strict=True))
        if any(after > before for before, after in each):
            yield f"heavier: {each}"
        if any(before and not after for before, after in each):
            yield f"left without GPUs: {each}"
    yield from _escaped(world, ours)


def _escaped(world: World, ours: Answer) -> Iterator[str]:
    """A quota that counted the old form, and counts neither the new one nor what it weighs."""
    record = json.loads(ours.body["metadata"].get("annotations", {}).get(DECISION_ANNOTATION, "{}"))
    if "resource" not in record:
        return
    for quota in quotas_of(world.quotas):
        hard = quota.status.hard
        counted = f"requests.{record['resource']}" in hard or MILLI in hard
        if f"requests.{GPU}" in hard and not counted and quota_matches_pod(quota, parse_pod(ours.body)):
            yield f"escaped quota {quota.metadata.name}, which does not count {record['resource']}"


async def _by_chance(asking: DryRuns, world: World, data: Json, without: Answer, ours: Answer, what: str) -> bool:
    """May the API server itself say the same without us? Its LimitRanges are taken in any order."""
    if len(world.ranges) < 2:
        return False
    again = [*await asking.pods(world.name, [unsent(data)] * OFTEN), without]
    if ours.status != 201:
        return any(_is_refused_anyway(world, answer, ours) for answer in again)
    seen = [weights(answer) for answer in again if answer.status == 201]
    if what.startswith("left"):
        return list(map(bool, weights(ours))) in [list(map(bool, each)) for each in seen]
    return what.startswith("heavier") and sum(weights(ours)) <= max(map(sum, seen))


def _is_refused_anyway(world: World, without: Answer, ours: Answer) -> bool:
    """Is a pod that is refused with us refused without us too, or over an accounting quota in the shape it has then?"""
    return without.status != 201 or (is_over(ours) and _is_over_anyway(world, without))


def is_over(answer: Answer) -> bool:
    """Does the accounting quota refuse it?"""
    return answer.status == 403 and "exceeded quota: accounting," in answer.body["message"]


def _is_over_anyway(world: World, without: Answer) -> bool:
    """Is a pod, as it is without us, over what the accounting quota leaves?"""
    (quota,) = [item for item in world.quotas if item["metadata"]["name"] == "accounting"]
    left = parse_units(quota["status"]["hard"][MILLI]) - parse_units(quota["status"]["used"][MILLI])
    return charged(without) > left


def containers_of(answer: Answer) -> list[Json]:
    """Init containers first, as they run."""
    spec = answer.body["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def amounts(container: Json) -> Json:
    """Limits of a container."""
    found: Json = container.get("resources", {}).get("limits", {})
    return found


def gpus(answer: Answer) -> set[str]:
    """Names of the GPUs that a stored pod asks for."""
    found = {name for one in containers_of(answer) for name, count in amounts(one).items() if parse_units(count)}
    return {name for name in found if name.startswith("nvidia.com/")}


def weights(answer: Answer) -> list[int]:
    """What the GPUs of each container weigh at most, on the nodes that selector and affinity leave."""
    spec = parse_pod(answer.body).spec
    node = spec.affinity.node_affinity if spec.affinity else None
    nodes = FLEET.select_nodes(
        spec.node_selector, node.required.node_selector_terms if node and node.required else None
    )
    return [
        min(
            MAX_MILLI,
            sum(
                parse_units(count) * _weight(name, nodes)
                for name, count in amounts(one).items()
                if parse_gpu_resource(name)
            ),
        )
        for one in containers_of(answer)
    ]


def _weight(name: str, nodes: int) -> int:
    reached = [offer.gpu_milli for offer in FLEET.by_resource.get(name, ()) if offer.nodes & nodes]
    return max(reached) if reached else unit_milli(name, FLEET)


def declared(answer: Answer) -> list[int]:
    """What each container says that its GPUs weigh."""
    return [parse_units(amounts(one).get(ACCOUNTING_RESOURCE, 0)) for one in containers_of(answer)]


def charged(answer: Answer) -> int:
    """What a quota is charged for the GPUs of a pod: what may run at one time."""
    beside = most = 0
    for one, weight in zip(containers_of(answer), weights(answer), strict=True):
        runs_on = one.get("restartPolicy") == "Always" or one in answer.body["spec"]["containers"]
        beside += weight if runs_on else 0
        most = max(most, beside if runs_on else beside + weight)
    return most


def _told(world: World, data: Json, without: Answer, ours: Answer, what: str) -> str:
    stored = [item["spec"] for item in world.ranges], [(item["spec"], item["status"]) for item in world.quotas]
    said = [answer.body.get("message") or answer.body["spec"] for answer in (without, ours)]
    lines = [what, *stored, data, f"without us: {without.status} {said[0]}", f"with us: {ours.status} {said[1]}"]
    return "\n".join(["", *(line if isinstance(line, str) else json.dumps(line) for line in lines), ""])
