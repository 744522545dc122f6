"""The GPU requests of a pod: totals as the scheduler computes them, and amounts that the API server rejects."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import PodMaker, make_pod
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.model.pod_resources import effective_amount, max_consumption
from webhook.model.pods import parse_pod
from webhook.model.quantity import parse_nano

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"


def limits(resource: str, count: str) -> dict[str, Any]:
    """Return resources with equal limits and requests."""
    return {"limits": {resource: count}, "requests": {resource: count}}


def with_init(pod: PodMaker, name: str, count: str, *, sidecar: bool = False) -> PodMaker:
    """Add an init container, or a sidecar, that requests whole GPUs."""
    extra = {"restartPolicy": "Always"} if sidecar else {}
    return pod.container(name, kind="initContainers", resources=limits(GPU, count), **extra)


class Case(NamedTuple):
    pod: PodMaker
    totals: dict[str, int]


TOTALS = {
    "no GPU: nothing": Case(make_pod().requests("cpu", "2"), {}),
    "one container": Case(make_pod().gpus(2), {GPU: 2}),
    "containers add up": Case(make_pod().gpus(1).container("b", resources=limits(GPU, "2")), {GPU: 3}),
    "an init container counts where it requests more": Case(with_init(make_pod().gpus(1), "i", "2"), {GPU: 2}),
    "an init container that requests less adds nothing": Case(with_init(make_pod().gpus(4), "i", "2"), {GPU: 4}),
    "a sidecar is added to the main containers": Case(with_init(make_pod().gpus(1), "s", "1", sidecar=True), {GPU: 2}),
    "an init container after a sidecar runs next to it": Case(
        with_init(with_init(make_pod().gpus(1), "s", "1", sidecar=True), "i", "2"), {GPU: 3}
    ),
    "an init container before a sidecar runs alone": Case(
        with_init(with_init(make_pod().gpus(1), "i", "2"), "s", "1", sidecar=True), {GPU: 2}
    ),
    "kinds are counted separately": Case(
        make_pod().gpus(1).container("b", resources=limits(SLICE, "1")), {GPU: 1, SLICE: 1}
    ),
    "limits alone are a request": Case(
        make_pod().spec(containers=[{"name": "a", "resources": {"limits": {GPU: 1}}}]), {GPU: 1}
    ),
    "a thousand milli is one": Case(make_pod().gpus("1000m"), {GPU: 1}),
    "zero requests nothing": Case(make_pod().gpus(0), {}),
    "other vendors are ignored": Case(make_pod().requests("amd.com/gpu", "1"), {}),
}


@pytest.mark.parametrize("case", TOTALS.values(), ids=TOTALS)
def test_totals(case: Case) -> None:
    assert gpu_requests_of_pod(parse_pod(case.pod.build())).totals == case.totals


COUNTS = st.lists(st.tuples(st.sampled_from(["main", "init", "sidecar"]), st.integers(0, 8)), max_size=8)


@given(COUNTS)
def test_all_totals_of_a_pod_are_equal_if_limits_equal_requests(containers: list[tuple[str, int]]) -> None:
    pod = make_pod()
    for index, (kind, count) in enumerate(containers):
        if kind == "main":
            pod = pod.container(f"c{index}", resources=limits(GPU, str(count)))
        else:
            pod = with_init(pod, f"c{index}", str(count), sidecar=kind == "sidecar")
    read = parse_pod(pod.build())
    sums = {effective_amount(read, GPU), effective_amount(read, GPU, limits=True), max_consumption(read, GPU)}
    assert sums == {parse_nano(str(gpu_requests_of_pod(read).totals.get(GPU, 0)))}


FAULTS = {
    "half a GPU": (make_pod().gpus("0.5"), ["GPU-L104"]),
    "a negative number": (make_pod().gpus("-1"), ["GPU-L104"]),
    "not a quantity": (make_pod().gpus("one"), ["GPU-L104"]),
    "a whole number with an exponent": (make_pod().gpus(1e3), []),
    "a thousand GPUs": (make_pod().gpus("1k"), []),
    "limits that differ from requests": (
        make_pod().spec(containers=[{"name": "a", "resources": {"limits": {GPU: "2"}, "requests": {GPU: "1"}}}]),
        ["GPU-L105"],
    ),
    "equal, written in two ways": (
        make_pod().spec(containers=[{"name": "a", "resources": {"limits": {GPU: "1"}, "requests": {GPU: 1}}}]),
        [],
    ),
    "a request without a limit": (
        make_pod().spec(containers=[{"name": "a", "resources": {"requests": {GPU: "1"}}}]),
        ["GPU-L105"],
    ),
}


@pytest.mark.parametrize(("pod", "want"), FAULTS.values(), ids=FAULTS)
def test_errors(pod: PodMaker, want: list[str]) -> None:
    gpu_requests = gpu_requests_of_pod(parse_pod(pod.build()))
    assert [finding.code for finding in gpu_requests.errors] == want


def test_an_error_in_one_container_does_not_change_the_count_of_another() -> None:
    pod = make_pod().gpus("0.5").container("b", resources=limits(GPU, "2"))
    assert gpu_requests_of_pod(parse_pod(pod.build())).totals == {GPU: 2}


def test_unknown_names_of_nvidia_are_reported_not_dropped() -> None:
    gpu_requests = gpu_requests_of_pod(parse_pod(make_pod().requests("nvidia.com/gpumem", "3000").build()))
    assert gpu_requests.unknown_resources == ("nvidia.com/gpumem",)
