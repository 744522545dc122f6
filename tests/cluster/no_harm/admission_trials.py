"""Random namespaces and pods, dry-run with and without our webhook, and the violations found.

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
from tests.cluster.dryrun import TIMEOUT_SECONDS, ApiAnswer, DryRunClient, open_dry_run_client
from tests.cluster.nodes import demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_comparison import NAMESPACE_BATCH, NamespaceObjects, create_random_namespace
from tests.cluster.predicted_outcomes import parse_quotas
from tests.cluster.random_objects import pod, with_quota_scope_fields
from tests.example_cluster import view_of
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, parse_gpu_resource
from webhook.model.pods import parse_pod
from webhook.model.pools import unit_milli
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import quota_matches_pod

BYPASS_LABEL = "rightslice.test/unsent"
"""Pods with this label bypass the webhook."""

SIZED = {"rightslice.dev/right-sizing": "enforced"}
ACCOUNTED = {**SIZED, "rightslice.test/accounted": "true"}
GPU, MILLI = "nvidia.com/gpu", f"requests.{ACCOUNTING_RESOURCE}"
SLICES = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")
WHOLE = 1000
FLEET = view_of(*demo_nodes()).fleet
TIMEOUT_MESSAGE = re.compile("deadline exceeded|Timeout|took too long to arrive|arrived after its timeout")
ORDER_SAMPLES = 128
"""Enough samples to see every order except once in ten million runs; the rarest has probability 1/8."""

MAX_RETRIES = 5
"""Maximum retries of a pod whose review timed out because the machine is slow."""


class TrialResult(NamedTuple):
    """Counts of tried pods, and the violations found.

    Attributes:
        pods: All of them.
        taken: Those that the API server takes without us.
        changed: Those that came out in another shape.
        weighed: Those whose GPUs were weighed.
        over: Those that are over the accounting quota, and would be in their old shape too.
        breaks: What must not be, each with all that is needed to see it again.
    """

    pods: int = 0
    accepted: int = 0
    changed: int = 0
    accounted: int = 0
    over_quota: int = 0
    violations: tuple[str, ...] = ()

    def plus(self, other: TrialResult) -> TrialResult:
        """Return the sums of both results."""
        return TrialResult(*map(add, self, other))


async def try_random_namespaces(plane: Plane, *, seed: str, worlds: int, pods: int) -> TrialResult:
    """Try random pods in random namespaces."""
    random = Random(seed)
    return await _try(plane, random, worlds, lambda: [random_gpu_pod(random, f"pod-{n}") for n in range(pods)])


async def try_pods(plane: Plane, pods: Sequence[Json], *, seed: str, worlds: int) -> TrialResult:
    """Try these pods in two namespaces without limits, and in random ones."""
    return await _try(plane, Random(seed), 2 + worlds, lambda: pods, calm=2)


async def _try(
    plane: Plane, random: Random, count: int, pods: Callable[[], Sequence[Json]], calm: int = 0
) -> TrialResult:
    """Every second namespace has GPU accounting; the first `calm` ones have no other limits."""
    tried, run, left = TrialResult(), secrets.token_hex(3), iter(range(count))
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as asking:
        await asking.create_marker_namespace(f"seen-{run}")
        while numbers := list(islice(left, NAMESPACE_BATCH)):
            worlds = {
                n: await _create_namespace(asking, random, f"safe-{run}-{n}", bool(n % 2), n < calm) for n in numbers
            }
            await asking.wait_for_admission_caches()
            await wait_for_webhook_caches(asking, f"mark-{run}-{numbers[0]}")
            for n, world in worlds.items():
                tried = tried.plus(await _try_in_namespace(world, asking, pods(), accounted=bool(n % 2)))
                await asking.send("DELETE", f"/api/v1/namespaces/{world.name}")
    return tried


async def _create_namespace(
    asking: DryRunClient, random: Random, name: str, accounted: bool, calm: bool
) -> NamespaceObjects:
    most = "1M" if calm else random.choice(("0", "143", "500", "1k", "2k", "4000"))
    accounting = {"metadata": {"name": "accounting"}, "spec": {"hard": {MILLI: most}}}
    labels, more = (ACCOUNTED, [accounting]) if accounted else (SIZED, [])
    if not calm:
        return await create_random_namespace(asking, random, name, labels=labels, more=more)
    await asking.add_namespace(name, labels)
    for quota in more:
        await asking.create(f"/api/v1/namespaces/{name}/resourcequotas", quota)
    return NamespaceObjects(name, [], await asking.wait_for_quota_status(name, len(more)))


async def wait_for_webhook_caches(asking: DryRunClient, name: str) -> None:
    """Wait until our webhook has cached every namespace, LimitRange and quota created so far.

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
        await asking.create(f"/api/v1/namespaces/{space}/{plural}", {"metadata": {"name": "mark"}, "spec": spec})
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not _keeps_whole_gpu(await _probe(asking, space)):
                await asyncio.sleep(0.02)
        await asking.send("DELETE", f"/api/v1/namespaces/{space}")


async def _probe(asking: DryRunClient, space: str) -> ApiAnswer:
    (answer,) = await asking.dry_run_pods(space, [make_pod("probe").namespace(space).needs("8Gi").gpus(1).build()])
    return answer


def _keeps_whole_gpu(answer: ApiAnswer) -> bool:
    return answer.status == 201 and sum(max_gpu_milli(answer)) == WHOLE


def random_gpu_pod(random: Random, name: str) -> Json:
    """Return a pod that may be invalid; most can be right-sized, and some set their own gpu-milli."""
    data = with_quota_scope_fields(random, pod(random, name))
    if random.random() < 0.7:
        _request_one_gpu(random, data)
    if random.random() < 0.2:
        _container_resources(random.choice(data["spec"]["containers"]), "limits")[ACCOUNTING_RESOURCE] = random.choice(
            ("0", "1", "5000")
        )
    return data


def _request_one_gpu(random: Random, data: Json) -> None:
    """Request one GPU in one or two containers only, and annotate the memory it needs."""
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
        _container_resources(container, "limits")[GPU] = random.choice(("1", "1", "1.0", "1000m"))


def _container_resources(container: Json, side: str) -> Json:
    found: Json = container.setdefault("resources", {}).setdefault(side, {})
    return found


async def _try_in_namespace(
    world: NamespaceObjects, asking: DryRunClient, pods: Sequence[Json], *, accounted: bool
) -> TrialResult:
    past = await asking.dry_run_pods(world.name, map(with_bypass_label, pods))
    through = await _dry_run_with_retries(asking, world.name, pods)
    breaks: list[str] = []
    for data, without, ours in zip(pods, past, through, strict=True):
        broken = list(_find_violations(world, without, ours, accounted=accounted))
        left = [what for what in broken if not await _occurs_without_webhook(asking, world, data, without, ours, what)]
        breaks += [_describe_violation(world, data, without, ours, what) for what in left]
    taken = [(without, ours) for without, ours in zip(past, through, strict=True) if without.status == 201]
    return TrialResult(
        pods=len(pods),
        accepted=len(taken),
        changed=sum(
            ours.status == 201 and requested_gpu_resources(ours) != requested_gpu_resources(without)
            for without, ours in taken
        ),
        accounted=sum(accounted and ours.status == 201 and any(max_gpu_milli(ours)) for _, ours in taken),
        over_quota=sum(is_over_accounting_quota(ours) for _, ours in taken),
        violations=tuple(breaks),
    )


def with_bypass_label(data: Json) -> Json:
    """Return the pod with the label that bypasses the webhook."""
    return {
        **data,
        "metadata": {**data["metadata"], "labels": {**data["metadata"].get("labels", {}), BYPASS_LABEL: "true"}},
    }


async def _dry_run_with_retries(asking: DryRunClient, namespace: str, pods: Sequence[Json]) -> list[ApiAnswer]:
    """Return each pod's answer with the webhook, retried after timeouts."""
    answers = await asking.dry_run_pods(namespace, pods)
    for _ in range(MAX_RETRIES):
        late = [
            place for place, answer in enumerate(answers) if TIMEOUT_MESSAGE.search(str(answer.body.get("message", "")))
        ]
        again = await asking.dry_run_pods(namespace, [pods[place] for place in late])
        for place, answer in zip(late, again, strict=True):
            answers[place] = answer
    return answers


def _find_violations(world: NamespaceObjects, without: ApiAnswer, ours: ApiAnswer, *, accounted: bool) -> Iterator[str]:
    """Yield every violation."""
    if ours.status != 201:
        if not _is_rejected_without_webhook(world, without, ours):
            yield "refused with us only"
        return
    if accounted and declared_gpu_milli(ours) != max_gpu_milli(ours):
        yield f"weighed {declared_gpu_milli(ours)}, and weighs {max_gpu_milli(ours)}"
    if without.status == 201:
        each = list(zip(max_gpu_milli(without), max_gpu_milli(ours), strict=True))
        if any(after > before for before, after in each):
            yield f"heavier: {each}"
        if any(before and not after for before, after in each):
            yield f"left without GPUs: {each}"
    yield from _find_uncounted_quotas(world, ours)


def _find_uncounted_quotas(world: NamespaceObjects, ours: ApiAnswer) -> Iterator[str]:
    """Yield quotas that counted the original resource but neither the new one nor its gpu-milli."""
    record = json.loads(ours.body["metadata"].get("annotations", {}).get(DECISION_ANNOTATION, "{}"))
    if "resource" not in record:
        return
    for quota in parse_quotas(world.quotas):
        hard = quota.status.hard
        counted = f"requests.{record['resource']}" in hard or MILLI in hard
        if f"requests.{GPU}" in hard and not counted and quota_matches_pod(quota, parse_pod(ours.body)):
            yield f"escaped quota {quota.metadata.name}, which does not count {record['resource']}"


async def _occurs_without_webhook(
    asking: DryRunClient, world: NamespaceObjects, data: Json, without: ApiAnswer, ours: ApiAnswer, what: str
) -> bool:
    """Return whether the same can happen without the webhook, since LimitRanges apply in any order."""
    if len(world.ranges) < 2:
        return False
    again = [*await asking.dry_run_pods(world.name, [with_bypass_label(data)] * ORDER_SAMPLES), without]
    if ours.status != 201:
        return any(_is_rejected_without_webhook(world, answer, ours) for answer in again)
    seen = [max_gpu_milli(answer) for answer in again if answer.status == 201]
    if what.startswith("left"):
        return list(map(bool, max_gpu_milli(ours))) in [list(map(bool, each)) for each in seen]
    return what.startswith("heavier") and sum(max_gpu_milli(ours)) <= max(map(sum, seen))


def _is_rejected_without_webhook(world: NamespaceObjects, without: ApiAnswer, ours: ApiAnswer) -> bool:
    """Return whether a rejected pod is also rejected without the webhook, or is over the accounting quota then."""
    return without.status != 201 or (
        is_over_accounting_quota(ours) and _exceeds_accounting_quota_without_webhook(world, without)
    )


def is_over_accounting_quota(answer: ApiAnswer) -> bool:
    """Return whether the accounting quota rejects it."""
    return answer.status == 403 and "exceeded quota: accounting," in answer.body["message"]


def _exceeds_accounting_quota_without_webhook(world: NamespaceObjects, without: ApiAnswer) -> bool:
    """Return whether the unpatched pod exceeds what the accounting quota leaves."""
    (quota,) = [item for item in world.quotas if item["metadata"]["name"] == "accounting"]
    left = parse_units(quota["status"]["hard"][MILLI]) - parse_units(quota["status"]["used"][MILLI])
    return quota_gpu_milli(without) > left


def containers_of(answer: ApiAnswer) -> list[Json]:
    """Init containers first, as they run."""
    spec = answer.body["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def container_limits(container: Json) -> Json:
    """Limits of a container."""
    found: Json = container.get("resources", {}).get("limits", {})
    return found


def requested_gpu_resources(answer: ApiAnswer) -> set[str]:
    """Return the GPU resources that a stored pod requests."""
    found = {
        name for one in containers_of(answer) for name, count in container_limits(one).items() if parse_units(count)
    }
    return {name for name in found if name.startswith("nvidia.com/")}


def max_gpu_milli(answer: ApiAnswer) -> list[int]:
    """Return the maximum gpu-milli of each container on the nodes that selector and affinity allow."""
    spec = parse_pod(answer.body).spec
    node = spec.affinity.node_affinity if spec.affinity else None
    nodes = FLEET.select_nodes(
        spec.node_selector, node.required.node_selector_terms if node and node.required else None
    )
    return [
        min(
            MAX_MILLI,
            sum(
                parse_units(count) * _milli_per_unit(name, nodes)
                for name, count in container_limits(one).items()
                if parse_gpu_resource(name)
            ),
        )
        for one in containers_of(answer)
    ]


def _milli_per_unit(name: str, nodes: int) -> int:
    reached = [offer.gpu_milli for offer in FLEET.by_resource.get(name, ()) if offer.nodes & nodes]
    return max(reached) if reached else unit_milli(name, FLEET)


def declared_gpu_milli(answer: ApiAnswer) -> list[int]:
    """Return the gpu-milli that each container declares."""
    return [parse_units(container_limits(one).get(ACCOUNTING_RESOURCE, 0)) for one in containers_of(answer)]


def quota_gpu_milli(answer: ApiAnswer) -> int:
    """Return the gpu-milli charged to a quota: the maximum that can run at one time."""
    beside = most = 0
    for one, weight in zip(containers_of(answer), max_gpu_milli(answer), strict=True):
        runs_on = one.get("restartPolicy") == "Always" or one in answer.body["spec"]["containers"]
        beside += weight if runs_on else 0
        most = max(most, beside if runs_on else beside + weight)
    return most


def _describe_violation(world: NamespaceObjects, data: Json, without: ApiAnswer, ours: ApiAnswer, what: str) -> str:
    stored = [item["spec"] for item in world.ranges], [(item["spec"], item["status"]) for item in world.quotas]
    said = [answer.body.get("message") or answer.body["spec"] for answer in (without, ours)]
    lines = [what, *stored, data, f"without us: {without.status} {said[0]}", f"with us: {ours.status} {said[1]}"]
    return "\n".join(["", *(line if isinstance(line, str) else json.dumps(line) for line in lines), ""])
