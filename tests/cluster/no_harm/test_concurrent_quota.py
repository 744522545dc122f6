"""Concurrent clients and two replicas fill a quota exactly: no GPU is allocated twice, and none is left over."""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.dryrun import ApiAnswer
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import ACCOUNTED, MILLI, declared_gpu_milli, max_gpu_milli
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CreateResult, create_pods
from tests.cluster.polling import eventually
from tests.cluster.replicas import two_replicas
from webhook.model.quantity import parse_units

ROUNDS, CREATES = map(int, os.environ.get("RIGHTSLICE_RACE", "2x2000").split("x"))
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "race")
CLIENTS = 32
RETRIED = re.compile("resource quota evaluation timed out|context deadline exceeded|status code 413|GPU-Q302")
"""Messages after which a client retries: quotas were not evaluated in time, a webhook did not answer, or it stopped the
review (413), which may take too much CPU time on a busy machine, such as during a garbage collection.

A pod that the mutating webhook did not answer for has no gpu-milli, which the validating webhook rejects (GPU-Q302), or
the user's amount, if it is more than the pod uses.
"""

STORED_BEFORE = 409
"""The status of a retry whose first attempt was stored after the client had given up."""

MAX_RETRIES = 3

SLICES = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")


@pytest.fixture
def two_replica_site(sizing: Installation) -> Iterator[Installation]:
    """Two replicas instead of the one server."""
    with two_replicas(sizing):
        yield sizing


def quota_pod(random: Random, namespace: str, name: str) -> Json:
    """Return an unscheduled pod with some form of GPU and its own gpu-milli."""
    maker = make_pod(name).namespace(namespace).spec(schedulerName="no-scheduler")
    kind = random.random()
    if kind < 0.4:
        maker.needs(random.choice(("8Gi", "30Gi"))).gpus(1)
    elif kind < 0.5:
        maker.gpus(random.choice((1, 2, 4)))
    else:
        maker.requests(random.choice(SLICES), random.choice(("1", "1", "2")))
    if random.random() < 0.2:
        maker.requests("rightslice.dev/gpu-milli", random.choice(("0", "1", "9000")))
    return maker.build()


def create_concurrently(site: Installation, random: Random, limit: int) -> tuple[Counter[int], int]:
    """Create pods under a quota; return the count of each HTTP status and the allocated milli-GPUs."""
    plane = site.plane
    name = plane.add_namespace(f"race-{secrets.token_hex(3)}", ACCOUNTED)
    quotas = f"/api/v1/namespaces/{name}/resourcequotas"
    plane.api.create(quotas, {"metadata": {"name": "accounting"}, "spec": {"hard": {MILLI: str(limit)}}})
    wait_for_quota_status(plane, f"{quotas}/accounting")
    try:
        pods = [quota_pod(random, name, f"r-{number}") for number in range(CREATES)]
        answers = create_pods(plane, pods, clients=CLIENTS)
        extra = [quota_pod(random, name, f"more-{number}") for number in range(CREATES // 10)]
        for _ in range(MAX_RETRIES):
            to_retry = {answer.name for answer in answers if is_retried(answer)}
            if not to_retry:
                break
            recount_all_pods(plane, name)
            answers = [answer for answer in answers if answer.name not in to_retry]
            again = [pod for pod in (*pods, *extra) if pod["metadata"]["name"] in to_retry]
            answers += create_pods(plane, again + extra, clients=4)
            pods, extra = [*pods, *extra], []
        stored = stored_pods(plane, name)
        allocated, used = allocated_milli(stored), used_milli(plane, name)
    finally:
        plane.api.delete(f"/api/v1/namespaces/{name}")
    unexpected = [
        answer
        for answer in answers
        if not answer.created and answer.status != STORED_BEFORE and "exceeded quota: accounting" not in answer.message
    ]
    assert unexpected == []
    assert used == allocated
    assert [pod for pod in stored if sum(declared_gpu_milli(pod)) < sum(max_gpu_milli(pod))] == []
    return Counter(answer.status for answer in answers), allocated


def wait_for_quota_status(plane: Plane, quota: str) -> None:
    """Wait until a quota's status matches its spec."""
    eventually(lambda: plane.api.get(quota), until=lambda item: item["status"].get("hard") == item["spec"]["hard"])


def is_retried(answer: CreateResult) -> bool:
    """Return whether a client repeats a create: without an answer, or because the server was too slow."""
    return answer.status in (0, 429, 504) or RETRIED.search(answer.message) is not None


def stored_pods(plane: Plane, namespace: str) -> list[ApiAnswer]:
    """Return the pods of a namespace."""
    return [ApiAnswer(200, pod) for pod in plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]]


def allocated_milli(stored: Sequence[ApiAnswer]) -> int:
    """Return the milli-GPUs of pods, by their own requests."""
    return sum(sum(declared_gpu_milli(pod)) for pod in stored)


def used_milli(plane: Plane, namespace: str) -> int:
    """Return the milli-GPUs that the namespace's quota has charged."""
    quota = plane.api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/accounting")
    return parse_units(quota["status"]["used"][MILLI])


def recount_all_pods(plane: Plane, namespace: str) -> None:
    """Force recounts of the quota until one counts every pod: a create that timed out may have been charged.

    The quota controller counts the pods that it has observed. On a busy machine these are fewer than are stored, and
    the recount lowers the usage below what is allocated.
    """
    quota = f"/api/v1/namespaces/{namespace}/resourcequotas/accounting"
    limits = count(10)

    def recount() -> tuple[int, int]:
        plane.api.patch(quota, {"spec": {"hard": {"count/configmaps": str(next(limits))}}})
        wait_for_quota_status(plane, quota)
        return used_milli(plane, namespace), allocated_milli(stored_pods(plane, namespace))

    eventually(recount, until=lambda amounts: amounts[0] == amounts[1])


def test_a_quota_is_filled_and_never_exceeded(two_replica_site: Installation) -> None:
    random = Random(SEED)
    for _ in range(ROUNDS):
        limit = random.randrange(100, 400) * CREATES
        statuses, allocated = create_concurrently(two_replica_site, random, limit)

        assert allocated <= limit
        assert allocated >= 0.99 * limit, (allocated, limit)
        assert min(statuses[201], statuses[403]) > CREATES / 20, statuses
