"""pod_resources: effective requests and limits, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import PodMaker, make_pod
from tests.cpu_timer import CpuTimer
from webhook.model.pod_resources import effective_amount, effective_requests, max_consumption
from webhook.model.pods import parse_pod
from webhook.model.quantity import parse_nano

GPU = "nvidia.com/gpu"


def _asks(kind: str, amount: object, name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "resources": {"limits": {GPU: amount}}, **fields}


def _with(pod: PodMaker, *containers: dict[str, Any]) -> PodMaker:
    for container in containers:
        pod.container(**container)
    return pod


def _init(amount: object, **fields: Any) -> dict[str, Any]:
    return _asks("initContainers", amount, **fields)


def _sidecar(amount: object) -> dict[str, Any]:
    return _init(amount, restartPolicy="Always")


CASES = {
    "one container": (make_pod().gpus(2), "2"),
    "none": (make_pod(), "0"),
    "two containers add up": (_with(make_pod().gpus(2), _asks("containers", "1")), "3"),
    "a smaller init container does not count": (_with(make_pod().gpus(2), _init("1")), "2"),
    "a larger init container sets the amount": (_with(make_pod().gpus(1), _init("2")), "2"),
    "init containers do not add up": (_with(make_pod().gpus(1), _init("2"), _init("2")), "2"),
    "a sidecar runs with the main container": (_with(make_pod().gpus(1), _sidecar("1")), "2"),
    "an init container after a sidecar runs with it": (_with(make_pod().gpus(1), _sidecar("1"), _init("2")), "3"),
    "an init container before a sidecar does not": (_with(make_pod().gpus(1), _init("2"), _sidecar("1")), "2"),
    "ephemeral containers do not count": (_with(make_pod(), _asks("ephemeralContainers", "4")), "0"),
    "zero": (make_pod().gpus(0), "0"),
    "an amount that is not a quantity is zero": (make_pod().gpus("many"), "0"),
    "the pod level has no GPUs": (make_pod().gpus(1).spec(resources={"requests": {GPU: "4"}}), "1"),
}


@pytest.mark.parametrize(("pod", "want"), CASES.values(), ids=CASES)
def test_gpus(pod: PodMaker, want: str) -> None:
    assert effective_amount(parse_pod(pod.build()), GPU) == parse_nano(want)


def _cpu(requests: object = None, limits: object = None, whole: Any = None, overhead: object = None) -> PodMaker:
    pod = make_pod()
    pod.main["resources"] = {
        "requests": {"cpu": requests} if requests is not None else {},
        "limits": {"cpu": limits} if limits is not None else {},
    }
    if whole is not None:
        pod.spec(resources=whole)
    return pod.spec(overhead={"cpu": overhead} if overhead is not None else {})


CPU = {
    "a request below its limit": (_cpu("1", "2"), "1", "2"),
    "a limit is the request": (_cpu(None, "2"), "2", "2"),
    "no limit": (_cpu("1"), "1", "0"),
    "the pod level comes first": (
        _cpu("1", "2", {"requests": {"cpu": "4"}, "limits": {"cpu": "8"}}),
        "4",
        "8",
    ),
    "a pod-level limit keeps the containers' request": (_cpu("1", None, {"limits": {"cpu": "8"}}), "1", "8"),
    "a pod-level limit is the request if no container has one": (_cpu(None, None, {"limits": {"cpu": "8"}}), "8", "8"),
    "a container's request of zero is one": (_cpu("0", None, {"limits": {"cpu": "8"}}), "0", "8"),
    "overhead is added": (_cpu("1", "2", None, "250m"), "1250m", "2250m"),
    "overhead adds no limit if there is none": (_cpu("1", None, None, "250m"), "1250m", "0"),
}


@pytest.mark.parametrize(("pod", "requests", "limits"), CPU.values(), ids=CPU)
def test_cpu(pod: PodMaker, requests: str, limits: str) -> None:
    read = parse_pod(pod.build())
    assert (effective_amount(read, "cpu"), effective_amount(read, "cpu", limits=True)) == (
        parse_nano(requests),
        parse_nano(limits),
    )


TAKEN = {
    "a limit": (_cpu("1", "2"), "2"),
    "a request where there is no limit": (_cpu("1"), "1"),
    "a pod-level limit": (_cpu("1", "4", {"limits": {"cpu": "3"}}), "3"),
    "a pod-level request above the containers": (_cpu("1", None, {"requests": {"cpu": "3"}}), "3"),
    "a container's limit above the pod-level request": (_cpu("1", "8", {"requests": {"cpu": "3"}}), "8"),
    "overhead is added": (_cpu("1", "2", None, "250m"), "2250m"),
    "a limit of one container and a request of another": (
        _cpu("1", "4").container("b", resources={"requests": {"cpu": "3"}}),
        "7",
    ),
}


@pytest.mark.parametrize(("pod", "want"), TAKEN.values(), ids=TAKEN)
def test_the_most_that_a_pod_can_use(pod: PodMaker, want: str) -> None:
    assert max_consumption(parse_pod(pod.build()), "cpu") == parse_nano(want)


def test_huge_pages_at_pod_level() -> None:
    pod = parse_pod(make_pod().spec(resources={"requests": {"hugepages-2Mi": "64Mi", GPU: "1"}}).build())
    assert effective_requests(pod) == {"hugepages-2Mi": parse_nano("64Mi")}


def test_effective_requests_without_zeros() -> None:
    pod = _with(make_pod().gpus(1).requests("cpu", "2"), _init("2")).requests("nvidia.com/mig-1g.10gb", "0")
    assert effective_requests(parse_pod(pod.spec(overhead={"memory": "1Gi"}).build())) == {
        GPU: parse_nano("2"),
        "cpu": parse_nano("2"),
        "memory": parse_nano("1Gi"),
    }


NAMES = ("cpu", "memory", "hugepages-2Mi", GPU)
LEVELS = st.fixed_dictionaries(
    {
        side: st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["0", "1", "250m", "3", "x"]))
        for side in ("limits", "requests")
    }
)
CONTAINERS = st.lists(st.fixed_dictionaries({"resources": LEVELS, "restartPolicy": st.sampled_from(["", "Always"])}))


@given(CONTAINERS, CONTAINERS, LEVELS | st.none(), LEVELS)
def test_effective_requests_are_the_effective_amount_of_each_resource(
    main: list[Any], init: list[Any], whole: Any, other: Any
) -> None:
    spec = {"containers": main, "initContainers": init, "overhead": other["limits"]}
    pod = parse_pod({"metadata": {}, "spec": spec | ({"resources": whole} if whole else {})})
    each = {name: effective_amount(pod, name) for name in sorted(NAMES)}
    assert list(effective_requests(pod).items()) == [(name, amount) for name, amount in each.items() if amount]


def test_thousands_of_containers_and_of_names_take_linear_time() -> None:
    """A pod without GPUs is not reviewed, and replicas read it when it is stored."""
    pod = make_pod()
    for number in range(4000):
        pod.container(f"c{number}", resources={"limits": {f"example.com/{number}": "1", f"example.com/{number}b": "1"}})
    read = parse_pod(pod.spec(resources={"limits": {f"hugepages-{size}Mi": "1Mi" for size in range(2000)}}).build())
    with CpuTimer() as timer:
        assert len(effective_requests(read)) == 10_000
    assert timer.seconds < 0.2
