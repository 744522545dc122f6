"""Concurrent clients and two replicas fill a quota exactly: no GPU is allocated twice, and none is left over."""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.dryrun import ApiAnswer
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import ACCOUNTED, MILLI, declared_gpu_milli, max_gpu_milli
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from tests.cluster.replicas import two_replicas
from webhook.model.quantity import parse_units

ROUNDS, CREATES = map(int, os.environ.get("RIGHTSLICE_RACE", "3x2000").split("x"))
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "race")
CLIENTS = 32
LATE = re.compile("resource quota evaluation timed out|context deadline exceeded|GPU-Q302")
"""What is said where an API server did not come to its quotas in time, or a hook did not answer it: clients try again.

A pod that our first hook did not answer for has nobody's weight, and our second refuses it (GPU-Q302), or its own, more
than it weighs.
"""

FORMS = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb")


@pytest.fixture
def racing(sizing: Installation) -> Iterator[Installation]:
    """Two replicas in place of the one server."""
    with two_replicas(sizing):
        yield sizing


def quota_pod(random: Random, namespace: str, name: str) -> Json:
    """Return an unscheduled pod with some form of GPU and its own gpu-milli."""
    maker = make_pod(name).namespace(namespace).spec(schedulerName="nobody")
    kind = random.random()
    if kind < 0.4:
        maker.needs(random.choice(("8Gi", "30Gi"))).gpus(1)
    elif kind < 0.5:
        maker.gpus(random.choice((1, 2, 4)))
    else:
        maker.asks(random.choice(FORMS), random.choice(("1", "1", "2")))
    if random.random() < 0.2:
        maker.asks("rightslice.dev/gpu-milli", random.choice(("0", "1", "9000")))
    return maker.build()


def create_concurrently(site: Installation, random: Random, ceiling: int) -> tuple[Counter[int], int]:
    """Create pods under a quota; return the count of each HTTP status and the allocated milli-GPUs."""
    plane = site.plane
    name = plane.add_namespace(f"race-{secrets.token_hex(3)}", ACCOUNTED)
    quotas = f"/api/v1/namespaces/{name}/resourcequotas"
    plane.api.create(quotas, {"metadata": {"name": "accounting"}, "spec": {"hard": {MILLI: str(ceiling)}}})
    wait_for_quota_status(plane, f"{quotas}/accounting")
    try:
        pods = [quota_pod(random, name, f"r-{number}") for number in range(CREATES)]
        answers = create_pods(plane, pods, clients=CLIENTS)
        late = {answer.name for answer in answers if LATE.search(answer.message)}
        if late:
            force_recount(plane, f"{quotas}/accounting")
            more = [quota_pod(random, name, f"more-{number}") for number in range(CREATES // 10)]
            answers = [answer for answer in answers if answer.name not in late]
            answers += create_pods(plane, [pod for pod in pods if pod["metadata"]["name"] in late] + more, clients=4)
        stored = [ApiAnswer(200, pod) for pod in plane.api.get(f"/api/v1/namespaces/{name}/pods")["items"]]
        given = sum(sum(declared_gpu_milli(pod)) for pod in stored)
        used = parse_units(plane.api.get(f"{quotas}/accounting")["status"]["used"][MILLI])
    finally:
        plane.api.delete(f"/api/v1/namespaces/{name}")
    others = [answer for answer in answers if not answer.created and "exceeded quota: accounting" not in answer.message]
    assert others == []
    assert used == given
    assert [pod for pod in stored if sum(declared_gpu_milli(pod)) < sum(max_gpu_milli(pod))] == []
    return Counter(answer.status for answer in answers), given


def wait_for_quota_status(plane: Plane, quota: str) -> None:
    """Wait until a quota's status matches its spec."""
    eventually(lambda: plane.api.get(quota), until=lambda one: one["status"].get("hard") == one["spec"]["hard"])


def force_recount(plane: Plane, quota: str) -> None:
    """Force a recount of a quota: a create that timed out may have been charged."""
    plane.api.patch(quota, {"spec": {"hard": {"count/configmaps": "10"}}})
    wait_for_quota_status(plane, quota)


def test_a_quota_is_filled_and_never_exceeded(racing: Installation) -> None:
    random = Random(SEED)
    for _ in range(ROUNDS):
        ceiling = random.randrange(100, 400) * CREATES
        statuses, given = create_concurrently(racing, random, ceiling)

        assert given <= ceiling
        assert given >= 0.99 * ceiling, (given, ceiling)
        assert min(statuses[201], statuses[403]) > CREATES / 20, statuses
