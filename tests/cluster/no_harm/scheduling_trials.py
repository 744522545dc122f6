"""Bursts of pods on the real scheduler, and the pods that stay pending only in the form that the webhook gave them.

A pod is harmed if it is still pending after the burst, and a copy in the form in which it was submitted is scheduled.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

from tests.builders import PodMaker, make_node, make_pod
from tests.cluster.client import Json
from tests.cluster.no_harm.admission_trials import GPU, RIGHT_SIZED, SLICES, with_bypass_label
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from tests.example_cluster import A100, MIXED
from webhook.model.annotations import ORIGINAL_ANNOTATION

SLICE = SLICES[0]
TRIAL = {"rightslice.test/trial": "bursts"}
"""Label of the nodes of the trials, which their pods select."""

SETTLED_SECONDS = 1.0
CLIENTS = 8

SLICE_NODES, CARD_NODES = 5, 8
SLICES_PER_NODE, CARDS_PER_NODE = 7, 8


def _zoned(index: int, name: str, labels: dict[str, str], **resources: int) -> Json:
    """Return a node of the trials in one of three zones."""
    return make_node(name, labels | TRIAL | {ZONE: f"zone-{index % 3}", HOST: name}, **resources)


ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TRIAL_NODES = [
    *(_zoned(i, f"burst-slices-{i}", MIXED, **{SLICE: SLICES_PER_NODE}) for i in range(SLICE_NODES)),
    *(_zoned(i, f"burst-cards-{i}", A100, **{GPU: CARDS_PER_NODE}) for i in range(CARD_NODES)),
]


class BurstResult(NamedTuple):
    """Pods of one or more bursts: created, right-sized, left pending, and the names of those harmed."""

    pods: int = 0
    right_sized: int = 0
    pending: int = 0
    harmed: tuple[str, ...] = ()

    def plus(self, other: BurstResult) -> BurstResult:
        """Return the sum of two results."""
        return BurstResult(
            self.pods + other.pods,
            self.right_sized + other.right_sized,
            self.pending + other.pending,
            self.harmed + other.harmed,
        )


@contextmanager
def trial_nodes(plane: Plane, nodes: Iterable[Json] = TRIAL_NODES) -> Iterator[None]:
    """Add the nodes of the trials, and wait until the webhook knows them."""
    names = add_nodes(plane, nodes)
    time.sleep(2 * SETTLED_SECONDS + 2)
    try:
        yield
    finally:
        remove_nodes(plane, names)


def burst_pod(name: str, namespace: str) -> PodMaker:
    """Return a pod without GPUs for the nodes of the trials."""
    return make_pod(name).namespace(namespace).spec(nodeSelector=TRIAL)


def random_burst(random: Random, namespace: str, count: int) -> list[Json]:
    """Return pods: most may be right-sized, some request a slice, and a quarter keep their whole cards."""
    pods = []
    for number in range(count):
        maker, kind = burst_pod(f"b-{number}", namespace), random.random()
        if kind < 0.6:
            maker.gpus(1).needs("8Gi")
        elif kind < 0.75:
            maker.requests(SLICE, "1")
        else:
            maker.gpus(1)
        if random.random() < 0.3:
            maker.requests("cpu", random.choice(("1", "4", "12")))
        pods.append(maker.build())
    return pods


def random_tied_burst(random: Random, namespace: str, count: int) -> list[Json]:
    """Return pods of a few applications that are tied to others of them in random ways, or to none."""
    pods = []
    for number, pod in enumerate(random_burst(random, namespace, count)):
        app = f"app-{random.randrange(4)}"
        pod["metadata"].setdefault("labels", {})["app"] = app
        if number % 3:
            pod["spec"] |= _random_ties(random, random.choice((app, f"app-{random.randrange(4)}")))
        pods.append(pod)
    return pods


def _random_ties(random: Random, app: str) -> Json:
    """Return affinity, anti-affinity or spread among the pods of an application."""
    term = {"topologyKey": random.choice((ZONE, HOST)), "labelSelector": {"matchLabels": {"app": app}}}
    kind = random.choice(("podAffinity", "podAntiAffinity", "spread", "spread"))
    if kind != "spread":
        return {"affinity": {kind: {REQUIRED: [term]}}}
    rule = {"maxSkew": random.choice((1, 2)), "whenUnsatisfiable": "DoNotSchedule"}
    taints = {"nodeTaintsPolicy": random.choice(("Honor", "Ignore"))}
    return {"topologySpreadConstraints": [term | rule | taints]}


def fillers(namespace: str, slices: int, cards: int) -> list[Json]:
    """Return pods that leave so many slices and cards of the trials' nodes free; the webhook does not see them."""
    amounts = {SLICE: SLICE_NODES * SLICES_PER_NODE - slices, GPU: CARD_NODES * CARDS_PER_NODE - cards}
    pods = [
        burst_pod(f"filler-{resource.rpartition('-')[2].replace('/', '.')}-{number}", namespace).requests(resource, "1")
        for resource, amount in amounts.items()
        for number in range(amount)
    ]
    return [with_bypass_label(pod.build()) for pod in pods]


def run_burst(plane: Plane, pods: Sequence[Json], before: Sequence[Json], clients: int = CLIENTS) -> BurstResult:
    """Create pods with concurrent clients, after others that run already; delete everything afterwards."""
    namespace = pods[0]["metadata"]["namespace"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    if before:
        begun = time.monotonic()
        create_pods(plane, before)
        eventually(lambda: plane.api.get(path)["items"], until=lambda found: all(map(_has_node, found)))
        # These pods bypass the webhook, which learns of them by its watch alone: later on a machine that is busy.
        time.sleep(2 * SETTLED_SECONDS + time.monotonic() - begun)
    try:
        answers = create_pods(plane, pods, clients=clients)
        assert [answer for answer in answers if not answer.created] == []
        names = {pod["metadata"]["name"] for pod in pods}
        stored = [pod for pod in _settled_pods(plane, path) if pod["metadata"]["name"] in names]
        pending = {pod["metadata"]["name"] for pod in stored if not _has_node(pod)}
        submitted = [pod for pod in pods if pod["metadata"]["name"] in pending]
        harmed = _names_scheduled_as_submitted(plane, path, submitted)
        sized = sum(ORIGINAL_ANNOTATION in pod["metadata"].get("annotations", {}) for pod in stored)
        return BurstResult(len(stored), sized, len(pending), harmed)
    finally:
        plane.api.delete(path, gracePeriodSeconds="0")
        eventually(lambda: plane.api.get(path)["items"], until=lambda found: not found)
        time.sleep(SETTLED_SECONDS / 2)


def _settled_pods(plane: Plane, path: str) -> list[Json]:
    """Return the pods once none of them was scheduled for a while."""

    def is_tried(pod: Json) -> bool:
        return _has_node(pod) or any(each["type"] == "PodScheduled" for each in pod["status"].get("conditions", ()))

    eventually(lambda: plane.api.get(path)["items"], until=lambda found: all(map(is_tried, found)))
    bound = -1
    while True:
        items: list[Json] = plane.api.get(path)["items"]
        if sum(map(_has_node, items)) == bound:
            return items
        bound = sum(map(_has_node, items))
        time.sleep(SETTLED_SECONDS)


def _names_scheduled_as_submitted(plane: Plane, path: str, pods: Sequence[Json]) -> tuple[str, ...]:
    """Return the names of copies of pods in the form in which they were submitted that are scheduled.

    All copies wait at the same time: the first that is scheduled would be scheduled alone too.
    """
    if not pods:
        return ()
    names = [f"{pod['metadata']['name']}-as-submitted" for pod in pods]
    copies = [with_bypass_label(pod) for pod in pods]
    for name, copy in zip(names, copies, strict=True):
        copy["metadata"] = {**copy["metadata"], "name": name}
    created = create_pods(plane, copies)
    assert [answer for answer in created if not answer.created] == []
    stored = {pod["metadata"]["name"]: pod for pod in _settled_pods(plane, path)}
    return tuple(name for name in names if _has_node(stored[name]))


def _has_node(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName"))


def namespace_for_bursts(plane: Plane, name: str) -> str:
    """Create a namespace in which pods are right-sized."""
    return plane.add_namespace(name, RIGHT_SIZED)
