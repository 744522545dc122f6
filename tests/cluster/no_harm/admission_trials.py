"""Random namespaces and pods, dry-run with and without our webhook, and the violations found.

Every namespace has right-sizing; every second one also has GPU accounting with a quota.
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
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import quota_matches_pod

BYPASS_LABEL = "rightslice.test/unsent"
"""Pods with this label bypass the webhook."""

RIGHT_SIZED = {"rightslice.dev/right-sizing": "enforced"}
ACCOUNTED = {**RIGHT_SIZED, "rightslice.test/accounted": "true"}
GPU, MILLI = "nvidia.com/gpu", f"requests.{ACCOUNTING_RESOURCE}"
SLICES = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")
WHOLE_GPU_MILLI = 1000
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
        accepted: Pods that the API server accepts without the webhook.
        changed: Accepted pods that got another GPU resource.
        accounted: Accepted pods with gpu-milli.
        over_quota: Accepted pods that exceed the accounting quota with the webhook.
        violations: Each with everything needed to reproduce it.
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


async def try_random_namespaces(plane: Plane, *, seed: str, namespaces: int, pods: int) -> TrialResult:
    """Try random pods in random namespaces."""
    random = Random(seed)
    return await _try(plane, random, namespaces, lambda: [random_gpu_pod(random, f"pod-{n}") for n in range(pods)])


async def try_pods(plane: Plane, pods: Sequence[Json], *, seed: str, namespaces: int) -> TrialResult:
    """Try these pods in two namespaces without limits, and in random ones."""
    return await _try(plane, Random(seed), 2 + namespaces, lambda: pods, unlimited=2)


async def _try(
    plane: Plane, random: Random, count: int, pods: Callable[[], Sequence[Json]], unlimited: int = 0
) -> TrialResult:
    """Every second namespace has GPU accounting; the first `calm` ones have no other limits."""
    total, run, left = TrialResult(), secrets.token_hex(3), iter(range(count))
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as client:
        await client.create_marker_namespace(f"marker-{run}")
        while numbers := list(islice(left, NAMESPACE_BATCH)):
            namespaces = {
                n: await _create_namespace(client, random, f"safe-{run}-{n}", bool(n % 2), n < unlimited)
                for n in numbers
            }
            await client.wait_for_admission_caches()
            await wait_for_webhook_caches(client, f"mark-{run}-{numbers[0]}")
            for n, namespace in namespaces.items():
                total = total.plus(await _try_in_namespace(namespace, client, pods(), accounted=bool(n % 2)))
                await client.send("DELETE", f"/api/v1/namespaces/{namespace.name}")
    return total


async def _create_namespace(
    client: DryRunClient, random: Random, name: str, accounted: bool, unlimited: bool
) -> NamespaceObjects:
    limit = "1M" if unlimited else random.choice(("0", "143", "500", "1k", "2k", "4000"))
    accounting = {"metadata": {"name": "accounting"}, "spec": {"hard": {MILLI: limit}}}
    labels, more = (ACCOUNTED, [accounting]) if accounted else (RIGHT_SIZED, [])
    if not unlimited:
        return await create_random_namespace(client, random, name, labels=labels, more=more)
    await client.add_namespace(name, labels)
    for quota in more:
        await client.create(f"/api/v1/namespaces/{name}/resourcequotas", quota)
    return NamespaceObjects(name, [], await client.wait_for_quota_status(name, len(more)))


async def wait_for_webhook_caches(client: DryRunClient, name: str) -> None:
    """Wait until our webhook has cached every namespace, LimitRange and quota created so far.

    Each kind is cached by one ordered watch. So one object of each kind is created last; each of them prevents
    right-sizing of a pod.
    """
    none = dict.fromkeys(SLICES, "0")
    marks = {
        "limitranges": {"limits": [{"type": "Container", "max": none, "default": none}]},
        "resourcequotas": {"hard": {f"requests.{GPU}": "100"}},
    }
    for plural, spec in marks.items():
        marked_namespace = f"{name}-{plural}"
        await client.add_namespace(marked_namespace, RIGHT_SIZED)
        await client.create(
            f"/api/v1/namespaces/{marked_namespace}/{plural}", {"metadata": {"name": "mark"}, "spec": spec}
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not _keeps_whole_gpu(await _probe(client, marked_namespace)):
                await asyncio.sleep(0.02)
        await client.send("DELETE", f"/api/v1/namespaces/{marked_namespace}")


async def _probe(client: DryRunClient, marked_namespace: str) -> ApiAnswer:
    (answer,) = await client.dry_run_pods(
        marked_namespace, [make_pod("probe").namespace(marked_namespace).needs("8Gi").gpus(1).build()]
    )
    return answer


def _keeps_whole_gpu(answer: ApiAnswer) -> bool:
    return answer.status == 201 and sum(max_gpu_milli(answer)) == WHOLE_GPU_MILLI


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
    without_resources = random.random() < 0.5
    for container in [*containers, *data["spec"].get("initContainers", ())]:
        if without_resources:
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
    namespace: NamespaceObjects, client: DryRunClient, pods: Sequence[Json], *, accounted: bool
) -> TrialResult:
    bypassed = await client.dry_run_pods(namespace.name, map(with_bypass_label, pods))
    reviewed = await _dry_run_with_retries(client, namespace.name, pods)
    violations: list[str] = []
    for data, unpatched, patched in zip(pods, bypassed, reviewed, strict=True):
        suspected = list(_find_violations(namespace, unpatched, patched, accounted=accounted))
        left = [
            violation
            for violation in suspected
            if not await _occurs_without_webhook(client, namespace, data, unpatched, patched, violation)
        ]
        violations += [_describe_violation(namespace, data, unpatched, patched, violation) for violation in left]
    accepted = [
        (unpatched, patched) for unpatched, patched in zip(bypassed, reviewed, strict=True) if unpatched.status == 201
    ]
    return TrialResult(
        pods=len(pods),
        accepted=len(accepted),
        changed=sum(
            patched.status == 201 and requested_gpu_resources(patched) != requested_gpu_resources(unpatched)
            for unpatched, patched in accepted
        ),
        accounted=sum(accounted and patched.status == 201 and any(max_gpu_milli(patched)) for _, patched in accepted),
        over_quota=sum(is_over_accounting_quota(patched) for _, patched in accepted),
        violations=tuple(violations),
    )


def with_bypass_label(data: Json) -> Json:
    """Return the pod with the label that bypasses the webhook."""
    return {
        **data,
        "metadata": {**data["metadata"], "labels": {**data["metadata"].get("labels", {}), BYPASS_LABEL: "true"}},
    }


async def _dry_run_with_retries(client: DryRunClient, namespace: str, pods: Sequence[Json]) -> list[ApiAnswer]:
    """Return each pod's answer with the webhook, retried after timeouts."""
    answers = await client.dry_run_pods(namespace, pods)
    for _ in range(MAX_RETRIES):
        timed_out = [
            index for index, answer in enumerate(answers) if TIMEOUT_MESSAGE.search(str(answer.body.get("message", "")))
        ]
        repeated = await client.dry_run_pods(namespace, [pods[index] for index in timed_out])
        for index, answer in zip(timed_out, repeated, strict=True):
            answers[index] = answer
    return answers


def _find_violations(
    namespace: NamespaceObjects, unpatched: ApiAnswer, patched: ApiAnswer, *, accounted: bool
) -> Iterator[str]:
    """Yield every violation, from the answers without and with the webhook."""
    if patched.status != 201:
        if not _is_rejected_without_webhook(namespace, unpatched, patched):
            yield "rejected only with the webhook"
        return
    if accounted and declared_gpu_milli(patched) != max_gpu_milli(patched):
        yield f"declares gpu-milli {declared_gpu_milli(patched)}, expected {max_gpu_milli(patched)}"
    if unpatched.status == 201:
        each = list(zip(max_gpu_milli(unpatched), max_gpu_milli(patched), strict=True))
        if any(after > before for before, after in each):
            yield f"more gpu-milli: {each}"
        if any(before and not after for before, after in each):
            yield f"without GPUs: {each}"
    yield from _find_uncounted_quotas(namespace, patched)


def _find_uncounted_quotas(namespace: NamespaceObjects, patched: ApiAnswer) -> Iterator[str]:
    """Yield quotas that counted the original resource but neither the new one nor its gpu-milli."""
    record = json.loads(patched.body["metadata"].get("annotations", {}).get(DECISION_ANNOTATION, "{}"))
    if "resource" not in record:
        return
    for quota in parse_quotas(namespace.quotas):
        hard = quota.status.hard
        counted = f"requests.{record['resource']}" in hard or MILLI in hard
        if f"requests.{GPU}" in hard and not counted and quota_matches_pod(quota, parse_pod(patched.body)):
            yield f"bypassed quota {quota.metadata.name}, which does not count {record['resource']}"


async def _occurs_without_webhook(
    client: DryRunClient,
    namespace: NamespaceObjects,
    data: Json,
    unpatched: ApiAnswer,
    patched: ApiAnswer,
    violation: str,
) -> bool:
    """Return whether the same can happen without the webhook, since LimitRanges apply in any order."""
    if len(namespace.ranges) < 2:
        return False
    repeated = [
        *await client.dry_run_pods(namespace.name, [with_bypass_label(data)] * ORDER_SAMPLES),
        unpatched,
    ]
    if patched.status != 201:
        return any(_is_rejected_without_webhook(namespace, answer, patched) for answer in repeated)
    amounts = [max_gpu_milli(answer) for answer in repeated if answer.status == 201]
    if violation.startswith("without GPUs"):
        return list(map(bool, max_gpu_milli(patched))) in [list(map(bool, each)) for each in amounts]
    return violation.startswith("more gpu-milli") and sum(max_gpu_milli(patched)) <= max(map(sum, amounts))


def _is_rejected_without_webhook(namespace: NamespaceObjects, unpatched: ApiAnswer, patched: ApiAnswer) -> bool:
    """Return whether a rejected pod is also rejected without the webhook, or is over the accounting quota then."""
    return unpatched.status != 201 or (
        is_over_accounting_quota(patched) and _exceeds_accounting_quota_without_webhook(namespace, unpatched)
    )


def is_over_accounting_quota(answer: ApiAnswer) -> bool:
    """Return whether the accounting quota rejects it."""
    return answer.status == 403 and "exceeded quota: accounting," in answer.body["message"]


def _exceeds_accounting_quota_without_webhook(namespace: NamespaceObjects, unpatched: ApiAnswer) -> bool:
    """Return whether the unpatched pod exceeds what the accounting quota leaves."""
    (quota,) = [item for item in namespace.quotas if item["metadata"]["name"] == "accounting"]
    left = parse_units(quota["status"]["hard"][MILLI]) - parse_units(quota["status"]["used"][MILLI])
    return quota_gpu_milli(unpatched) > left


def containers_of(answer: ApiAnswer) -> list[Json]:
    """Return all containers, init containers first."""
    spec = answer.body["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def container_limits(container: Json) -> Json:
    """Return the limits of a container."""
    found: Json = container.get("resources", {}).get("limits", {})
    return found


def requested_gpu_resources(answer: ApiAnswer) -> set[str]:
    """Return the GPU resources that a stored pod requests."""
    found = {
        name
        for container in containers_of(answer)
        for name, count in container_limits(container).items()
        if parse_units(count)
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
                for name, count in container_limits(container).items()
                if parse_gpu_resource(name)
            ),
        )
        for container in containers_of(answer)
    ]


def _milli_per_unit(name: str, nodes: int) -> int:
    offered = [offer.gpu_milli for offer in FLEET.by_resource.get(name, ()) if offer.nodes & nodes]
    return max(offered) if offered else FLEET.unit_milli(name)


def declared_gpu_milli(answer: ApiAnswer) -> list[int]:
    """Return the gpu-milli that each container declares."""
    return [parse_units(container_limits(container).get(ACCOUNTING_RESOURCE, 0)) for container in containers_of(answer)]


def quota_gpu_milli(answer: ApiAnswer) -> int:
    """Return the gpu-milli charged to a quota: the maximum that can run at one time."""
    running = peak = 0
    for container, weight in zip(containers_of(answer), max_gpu_milli(answer), strict=True):
        keeps_running = container.get("restartPolicy") == "Always" or container in answer.body["spec"]["containers"]
        running += weight if keeps_running else 0
        peak = max(peak, running if keeps_running else running + weight)
    return peak


def _describe_violation(
    namespace: NamespaceObjects,
    data: Json,
    unpatched: ApiAnswer,
    patched: ApiAnswer,
    violation: str,
) -> str:
    stored = [item["spec"] for item in namespace.ranges], [(item["spec"], item["status"]) for item in namespace.quotas]
    results = [answer.body.get("message") or answer.body["spec"] for answer in (unpatched, patched)]
    lines = [
        violation,
        *stored,
        data,
        f"without webhook: {unpatched.status} {results[0]}",
        f"with webhook: {patched.status} {results[1]}",
    ]
    return "\n".join(["", *(line if isinstance(line, str) else json.dumps(line) for line in lines), ""])
