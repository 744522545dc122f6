"""Clients race for a shared quota through one to three replicas: it is never exceeded at any moment, and filled."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import NamedTuple

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import ADMISSION_API, Installation, fetch_page
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CreateResult, create_pods
from tests.cluster.polling import eventually
from tests.cluster.replicas import Replicas, serve_replicas
from webhook.manifests.objects import api_path
from webhook.server.escrow_keeper import ESCROWS_ANNOTATION, QUOTA_LEASE
from webhook.well_known import SYSTEM_NAMESPACE

CEILING = 8000
CLIENTS = 20
CREATES = 60
POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"


class RaceCase(NamedTuple):
    """A race.

    Attributes:
        replicas: Number of replicas.
        deletes: True if pods are deleted meanwhile.
        fault: Called once in the middle.
    """

    replicas: int
    deletes: bool = False
    fault: Callable[[Replicas], None] = lambda _replicas: None


def kill_one(replicas: Replicas) -> None:
    replicas.kill_oldest()


def kill_one_and_start_another(replicas: Replicas) -> None:
    replicas.kill_oldest()
    threading.Thread(target=replicas.add).start()


CASES = {
    "one replica": RaceCase(1),
    "two replicas": RaceCase(2),
    "three replicas": RaceCase(3),
    "three replicas, and pods are deleted": RaceCase(3, deletes=True),
    "two replicas, and one is killed": RaceCase(2, fault=kill_one),
    "two replicas, one is killed and replaced, and pods are deleted": RaceCase(
        2, deletes=True, fault=kill_one_and_start_another
    ),
}


@pytest.fixture
def pool(sizing: Installation) -> Iterator[str]:
    """The name of a namespace with a shared quota; webhooks that do not answer reject its pods."""
    plane, name = sizing.plane, f"lab-{secrets.token_hex(3)}"
    namespace = plane.add_namespace(name, {"pool": name})
    shared = [{"name": "lab", "gpuMilli": CEILING}]
    match = {"namespaceSelector": {"matchLabels": {"pool": name}}}
    spec = {"mode": "enforce", "match": match, "quotas": {"shared": shared}}
    body = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}
    plane.api.create(POLICIES, body)
    with webhooks_that_fail_closed(plane):
        yield namespace
    plane.api.delete(f"{POLICIES}/{name}")
    plane.api.delete(f"/api/v1/namespaces/{namespace}")


@contextmanager
def webhooks_that_fail_closed(plane: Plane) -> Iterator[None]:
    """Make a webhook that does not answer reject the pod, within the block."""
    configuration = {"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "rightslice"}}
    path = api_path({"apiVersion": ADMISSION_API, **configuration})
    before = [webhook["failurePolicy"] for webhook in plane.api.get(path)["webhooks"]]
    set_failure_policies(plane, path, ["Fail"] * len(before))
    try:
        yield
    finally:
        set_failure_policies(plane, path, before)


def set_failure_policies(plane: Plane, path: str, policies: list[str]) -> None:
    """Set the failurePolicy of each webhook of a configuration."""
    fields = enumerate(policies)
    plane.api.patch(
        path, [{"op": "replace", "path": f"/webhooks/{i}/failurePolicy", "value": each} for i, each in fields], "json"
    )


def gpu_pods(namespace: str, random: Random, prefix: str, count: int) -> list[Json]:
    """Return pods with one or two GPUs that no scheduler binds."""
    makers = [
        make_pod(f"{prefix}-{number}").namespace(namespace).gpus(random.choice((1, 1, 1, 2))) for number in range(count)
    ]
    return [maker.spec(schedulerName="no-scheduler").build() for maker in makers]


def gpu_milli(pod: Json) -> int:
    """Return the weight of a pod with whole GPUs."""
    return sum(1000 * int(each["resources"]["limits"]["nvidia.com/gpu"]) for each in pod["spec"]["containers"])


def used_milli(plane: Plane, namespace: str) -> int:
    return sum(map(gpu_milli, plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]))


def peak_milli(plane: Plane, namespace: str, since: str) -> int:
    """Return the most that the pods of a namespace used at any moment since a resource version, from their events.

    Raises:
        LookupError: the watch ended before the last event.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?watch=1&resourceVersion={since}&timeoutSeconds=3"
    pods: dict[str, int] = {}
    peak = 0
    for event in map(json.loads, plane.api.text(path).splitlines()):
        pod = event["object"]
        pods[pod["metadata"]["name"]] = 0 if event["type"] == "DELETED" else gpu_milli(pod)
        peak = max(peak, sum(pods.values()))
    if sum(pods.values()) != used_milli(plane, namespace):
        raise LookupError("the watch ended before the last event")
    return peak


@contextmanager
def deletions(plane: Plane, namespace: str, random: Random, *, enabled: bool) -> Iterator[None]:
    """Delete one pod after another within the block."""
    path, stop = f"/api/v1/namespaces/{namespace}/pods", threading.Event()

    def delete_some() -> None:
        while enabled and not stop.wait(0.2):
            if names := [pod["metadata"]["name"] for pod in plane.api.get(path)["items"]]:
                with suppress(RefusedError):
                    plane.api.delete(f"{path}/{random.choice(names)}?gracePeriodSeconds=0")

    thread = threading.Thread(target=delete_some)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def race(plane: Plane, namespace: str, replicas: Replicas, case: RaceCase) -> list[CreateResult]:
    """Create more pods than fit, with the fault in the middle."""
    random = Random(namespace)

    def on_answer(count: int) -> None:
        if count == CREATES // 4:
            case.fault(replicas)

    with deletions(plane, namespace, random, enabled=case.deletes):
        pods = gpu_pods(namespace, random, "race", CREATES)
        return create_pods(plane, pods, clients=CLIENTS, retries=10, on_answer=on_answer)


def test_kubectl_repeats_a_create_whose_gpus_another_replica_holds(sizing: Installation, pool: str) -> None:
    """Each of two replicas holds half of the quota, and the pod needs all of it."""
    with serve_replicas(sizing, 2) as replicas:
        eventually(lambda: escrows_of(sizing.plane), until=lambda held: sorted(held) == [CEILING // 2] * 2)
        pod = make_pod("large").namespace(pool).gpus(CEILING // 1000).spec(schedulerName="no-scheduler").build()
        sizing.plane.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        pages = [fetch_page(port, "/metrics") for port, _ in replicas.running]
        refused = sizing.plane.kubectl("create", "-f", "-", stdin=json.dumps(pod).replace("large", "more"), check=False)
    assert any('result="retried"' in page for page in pages)
    assert used_milli(sizing.plane, pool) == CEILING
    assert "exceeded quota: lab" in refused.stderr


def escrows_of(plane: Plane) -> list[int]:
    """Return what the replicas of the only shared quota that are not released hold."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{QUOTA_LEASE}"
    record = json.loads(plane.api.get(path)["metadata"].get("annotations", {}).get(ESCROWS_ANNOTATION, "{}"))
    return [sum(entry.get("escrows", {}).values()) for entry in record.values() if not entry.get("released")]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_shared_quota_is_never_exceeded_and_filled(sizing: Installation, pool: str, case: RaceCase) -> None:
    plane = sizing.plane
    with serve_replicas(sizing, case.replicas) as replicas:
        since = plane.api.get(f"/api/v1/namespaces/{pool}/pods")["metadata"]["resourceVersion"]
        answers = race(plane, pool, replicas, case)
        fillers = [make_pod(f"last-{number}").namespace(pool).gpus(1) for number in range(CEILING // 1000)]
        last = create_pods(
            plane, [one.spec(schedulerName="no-scheduler").build() for one in fillers], clients=3, retries=90
        )
        eventually(lambda: used_milli(plane, pool), until=lambda used: used == CEILING)

        assert eventually(lambda: peak_milli(plane, pool, since)) == CEILING
    rejected = [each for each in (*answers, *last) if each.status not in (201, 0, 429, 500)]
    assert all(each.status == 403 and "exceeded quota: lab" in each.message for each in rejected), rejected
    assert rejected or case.deletes
