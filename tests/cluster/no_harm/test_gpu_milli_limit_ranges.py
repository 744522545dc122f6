"""Weights are written beside LimitRanges on the accounting resource, and no pod is refused for a zero of ours."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.dryrun import Answer
from tests.cluster.installation import Installed
from tests.cluster.no_harm.admission_trials import ACCOUNTED, declared
from tests.cluster.polling import eventually
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE

GIVING: Json = {"type": "Container", "default": {ACCOUNTING_RESOURCE: "20"}}
RANGES: dict[str, Json] = {
    "a minimum": GIVING | {"min": {ACCOUNTING_RESOURCE: "10"}},
    "a ratio": GIVING | {"maxLimitRequestRatio": {ACCOUNTING_RESOURCE: "1"}},
}
OWN: Json = {"limits": {ACCOUNTING_RESOURCE: "10"}, "requests": {ACCOUNTING_RESOURCE: "10"}}
PODS: dict[str, tuple[PodMaker, list[int]]] = {
    "GPUs beside a sidecar": (make_pod().gpus(1).container("side"), [1000, 20]),
    "GPUs beside a user's own amount": (make_pod().gpus(1).container("side", resources=OWN), [1000, 10]),
    "no GPUs, and a user's own amount": (make_pod().asks(ACCOUNTING_RESOURCE, "10").container("side"), [10, 20]),
}


@pytest.fixture(scope="module", params=list(RANGES.values()), ids=list(RANGES))
def space(sizing: Installed, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace whose pods are weighed, with a LimitRange."""
    plane = sizing.plane
    name = plane.add_namespace(f"weighing-{secrets.token_hex(3)}", ACCOUNTED)
    gives = {"metadata": {"name": "milli"}, "spec": {"limits": [request.param]}}
    plane.api.create(f"/api/v1/namespaces/{name}/limitranges", gives)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


def weighed(site: Installed, space: str, maker: PodMaker) -> list[int]:
    """What each container of a pod is told to weigh; nothing where it is refused. Nothing is stored."""
    pod = maker.namespace(space).build()
    with suppress(RefusedError):
        return declared(Answer(201, site.plane.api.create(f"/api/v1/namespaces/{space}/pods", pod, dryRun="All")))
    return []


@pytest.mark.parametrize(("maker", "want"), PODS.values(), ids=PODS)
def test_a_pod_that_a_limit_range_takes_without_us_is_taken(
    sizing: Installed, space: str, maker: PodMaker, want: list[int]
) -> None:
    """Once our webhook has seen the LimitRange."""
    eventually(lambda: weighed(sizing, space, maker), until=lambda each: each == want)
