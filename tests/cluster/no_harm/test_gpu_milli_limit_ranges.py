"""gpu-milli amounts with LimitRanges on the accounting resource: no pod is rejected for a zero that we wrote."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.dryrun import ApiAnswer
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import ACCOUNTED, declared_gpu_milli
from tests.cluster.polling import eventually
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE

DEFAULT_MILLI: Json = {"type": "Container", "default": {ACCOUNTING_RESOURCE: "20"}}
RANGES: dict[str, Json] = {
    "a minimum": DEFAULT_MILLI | {"min": {ACCOUNTING_RESOURCE: "10"}},
    "a ratio": DEFAULT_MILLI | {"maxLimitRequestRatio": {ACCOUNTING_RESOURCE: "1"}},
}
USER_MILLI: Json = {"limits": {ACCOUNTING_RESOURCE: "10"}, "requests": {ACCOUNTING_RESOURCE: "10"}}
PODS: dict[str, tuple[PodMaker, list[int]]] = {
    "GPUs beside a sidecar": (make_pod().gpus(1).container("side"), [1000, 20]),
    "GPUs beside a user's own amount": (make_pod().gpus(1).container("side", resources=USER_MILLI), [1000, 10]),
    "no GPUs, and a user's own amount": (make_pod().requests(ACCOUNTING_RESOURCE, "10").container("side"), [10, 20]),
}


@pytest.fixture(scope="module", params=list(RANGES.values()), ids=list(RANGES))
def namespace(sizing: Installation, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace with GPU accounting and a LimitRange."""
    plane = sizing.plane
    name = plane.add_namespace(f"gpu-milli-{secrets.token_hex(3)}", ACCOUNTED)
    limit_range = {"metadata": {"name": "milli"}, "spec": {"limits": [request.param]}}
    plane.api.create(f"/api/v1/namespaces/{name}/limitranges", limit_range)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


def container_gpu_milli(site: Installation, namespace: str, maker: PodMaker) -> list[int]:
    """Return the gpu-milli of each container in a dry run; empty if the pod is rejected."""
    pod = maker.namespace(namespace).build()
    with suppress(RefusedError):
        return declared_gpu_milli(
            ApiAnswer(201, site.plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All"))
        )
    return []


@pytest.mark.parametrize(("maker", "expected"), PODS.values(), ids=PODS)
def test_a_pod_that_passes_the_limit_range_still_passes(
    sizing: Installation, namespace: str, maker: PodMaker, expected: list[int]
) -> None:
    """As soon as our webhook has cached the LimitRange."""
    eventually(lambda: container_gpu_milli(sizing, namespace, maker), until=lambda each: each == expected)
