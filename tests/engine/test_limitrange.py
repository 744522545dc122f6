"""LimitRanges: defaults, validation and injected GPUs, as in the API server."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.engine.invariants import gpu_pods
from webhook.engine.limitrange import findings
from webhook.engine.limitrange.findings import find_injected_gpus
from webhook.engine.limitrange.validation import predict_admission
from webhook.engine.pod_context import InjectedAmount
from webhook.errors import QuantityError
from webhook.model.apimachinery import canonical_text
from webhook.model.defaulting import (
    DefaultRecord,
    apply_defaults,
    apply_request_defaults,
    default_limit_range,
    default_pod,
    default_pod_data,
    limit_ranger_annotation,
    read_limit_ranger_annotation,
)
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, ResourceList, parse_limit_range
from webhook.model.objects import LimitRange
from webhook.model.pod_amounts import LimitsAndRequests, read_pod_amounts
from webhook.model.pods import parse_pod

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NOTE = "kubernetes.io/limit-ranger"
ONE = ("spec", "containers", 0)


def limits(*items: dict[str, Any], name: str = "lr") -> ParsedLimitRange:
    """Return a LimitRange as the API server stores it."""
    data = {"metadata": {"name": name}, "spec": {"limits": [{"type": "Container"} | item for item in items]}}
    return parse_limit_range(default_limit_range(msgspec.convert(data, LimitRange)))


def texts(amounts: ResourceList) -> dict[str, str]:
    """Return amounts as text."""
    return {name: canonical_text(amount) for name, amount in amounts.items()}


def first(pod: PodMaker, *ranges: ParsedLimitRange) -> LimitsAndRequests:
    """Return the amounts of the first container after defaults."""
    return apply_defaults(parse_pod(pod.build()), NamespaceLimitRanges(ranges)).containers[0]


class Gives(NamedTuple):
    pod: PodMaker
    ranges: list[ParsedLimitRange]
    limits: dict[str, str]
    requests: dict[str, str]


GIVEN = {
    "max is the default of a container that sets none": Gives(
        make_pod(), [limits({"max": {GPU: "4"}})], {GPU: "4"}, {GPU: "4"}
    ),
    "an explicit zero is named": Gives(make_pod().gpus(0), [limits({"max": {GPU: "4"}})], {GPU: "0"}, {GPU: "0"}),
    "default comes before max": Gives(
        make_pod(), [limits({"max": {GPU: "4"}, "default": {GPU: "0"}})], {GPU: "0"}, {GPU: "0"}
    ),
    "min alone sets a request and no limit": Gives(make_pod(), [limits({"min": {GPU: "1"}})], {}, {GPU: "1"}),
    "an own request with a default": Gives(
        make_pod(),
        [limits({"default": {"cpu": "2"}, "defaultRequest": {"cpu": "500m"}})],
        {"cpu": "2"},
        {"cpu": "500m"},
    ),
    "a limit alone sets the request before LimitRanger runs": Gives(
        make_pod().spec(containers=[{"name": "main", "resources": {"limits": {"cpu": "3"}}}]),
        [limits({"defaultRequest": {"cpu": "1"}})],
        {"cpu": "3"},
        {"cpu": "3"},
    ),
    "the first LimitRange that names it takes precedence": Gives(
        make_pod(), [limits({"default": {GPU: "1"}}), limits({"default": {GPU: "2"}})], {GPU: "1"}, {GPU: "1"}
    ),
    "bounds of pods set no defaults": Gives(make_pod(), [limits({"type": "Pod", "max": {GPU: "1"}})], {}, {}),
    "amounts are rounded up to thousandths": Gives(make_pod().requests("cpu", "1u"), [], {"cpu": "1m"}, {"cpu": "1m"}),
}


@pytest.mark.parametrize("case", GIVEN.values(), ids=GIVEN)
def test_defaults_of_a_container(case: Gives) -> None:
    holder = first(case.pod, *case.ranges)
    assert (texts(holder.limits), texts(holder.requests)) == (case.limits, case.requests)


def sidecar(pod: PodMaker, **resources: Any) -> PodMaker:
    """Return the pod with a sidecar before its containers."""
    return pod.container("side", kind="initContainers", restartPolicy="Always", resources=resources)


def of_limits(**amounts: str) -> dict[str, Any]:
    """Return limits of GPUs: `gpu="2"`."""
    return {"limits": {f"nvidia.com/{name}": amount for name, amount in amounts.items()}}


class Says(NamedTuple):
    pod: PodMaker
    range: ParsedLimitRange
    words: list[str]


NO_LIMIT = "maximum nvidia.com/gpu usage per Pod is 2.  No limit is specified"
SAID = {
    "at the maximum passes": Says(make_pod().gpus(2), limits({"max": {GPU: "2"}}), []),
    "over the maximum": Says(
        make_pod().gpus(3),
        limits({"max": {GPU: "2"}}),
        ["maximum nvidia.com/gpu usage per Container is 2, but limit is 3"],
    ),
    "under the minimum": Says(
        make_pod().gpus(1),
        limits({"min": {GPU: "2"}}),
        ["minimum nvidia.com/gpu usage per Container is 2, but request is 1"],
    ),
    "a request under, a limit above": Says(
        make_pod().spec(
            containers=[{"name": "main", "resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "500m"}}}]
        ),
        limits({"min": {"cpu": "1"}, "max": {"cpu": "2"}}),
        [
            "minimum cpu usage per Container is 1, but request is 500m",
            "maximum cpu usage per Container is 2, but limit is 4",
        ],
    ),
    "a pod bound rejects pods that set none": Says(make_pod(), limits({"type": "Pod", "max": {GPU: "2"}}), [NO_LIMIT]),
    "an explicit zero passes it": Says(make_pod().gpus(0), limits({"type": "Pod", "max": {GPU: "2"}}), []),
    "the total of the pod counts": Says(
        make_pod().gpus(2).container("two", resources=of_limits(gpu="1")),
        limits({"type": "Pod", "max": {GPU: "2"}}),
        ["maximum nvidia.com/gpu usage per Pod is 2, but limit is 3"],
    ),
    "an init container runs alone": Says(
        make_pod().gpus(1).container("init", kind="initContainers", resources=of_limits(gpu="2")),
        limits({"type": "Pod", "max": {GPU: "2"}}),
        [],
    ),
    "a sidecar does not": Says(
        sidecar(make_pod().gpus(1), limits={GPU: "2"}),
        limits({"type": "Pod", "max": {GPU: "2"}}),
        ["maximum nvidia.com/gpu usage per Pod is 2, but limit is 3"],
    ),
    "a sidecar before an init container runs with it": Says(
        sidecar(make_pod(), limits={GPU: "1"}).container("init", kind="initContainers", resources=of_limits(gpu="2")),
        limits({"type": "Pod", "max": {GPU: "2"}}),
        ["maximum nvidia.com/gpu usage per Pod is 2, but limit is 3"],
    ),
    "the pod level replaces the containers": Says(
        make_pod().requests("cpu", "1").spec(resources={"limits": {"cpu": "4"}}),
        limits({"type": "Pod", "max": {"cpu": "2"}}),
        ["maximum cpu usage per Pod is 2, but limit is 4"],
    ),
    "a ratio rejects zero": Says(
        make_pod().gpus(0),
        limits({"maxLimitRequestRatio": {GPU: "1"}}),
        ["nvidia.com/gpu max limit to request ratio per Container is 1, but no request is specified or request is 0"],
    ),
    "a ratio that is too high": Says(
        make_pod().spec(
            containers=[{"name": "main", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "300m"}}}]
        ),
        limits({"maxLimitRequestRatio": {"cpu": "2"}}),
        ["cpu max limit to request ratio per Container is 2, but provided ratio is 3.333333"],
    ),
    "bounds of claims do not apply to pods": Says(
        make_pod().gpus(1), limits({"type": "PersistentVolumeClaim", "max": {GPU: "0"}}), []
    ),
    "an unreadable bound is ignored": Says(make_pod().gpus(9), limits({"max": {GPU: "many"}}), []),
}


@pytest.mark.parametrize("case", SAID.values(), ids=SAID)
def test_refusals_of_limit_ranger(case: Says) -> None:
    assert [
        refusal.message
        for refusal in predict_admission(parse_pod(case.pod.build()), NamespaceLimitRanges([case.range])).refusals
    ] == case.words


BROKEN = {
    "min alone makes a pod without GPUs invalid": (
        make_pod(),
        limits({"min": {GPU: "1"}}),
        ["Limit must be set for non overcommitable resources"],
    ),
    "a fraction": (make_pod().gpus("500m"), None, ["500m must be an integer", "500m must be an integer"]),
    "below zero": (make_pod().requests("cpu", "-1"), None, ["-1 must be greater than or equal to 0"] * 2),
    "a GPU at pod level": (
        make_pod().spec(resources=of_limits(gpu="1")),
        None,
        ["the name must be cpu, memory or hugepages-<size>"],
    ),
    "a name that is valid only in quotas": (
        make_pod().requests("requests.nvidia.com/gpu", "1"),
        None,
        ["the name must be cpu, memory, ephemeral-storage, hugepages-<size>, or have a domain, such as nvidia.com/gpu"]
        * 2,
    ),
    "less for the pod than for its containers": (
        make_pod().requests("cpu", "2").spec(resources={"limits": {"cpu": "1"}}),
        None,
        [
            "2 must be less than or equal to cpu limit of 1",
            "2 must be less than or equal to pod limits of 1",
        ],
    ),
    "requests below thousandths are added for the pod before they are rounded": (
        make_pod()
        .requests("cpu", "100u")
        .container("side", resources={"requests": {"cpu": "100u"}})
        .spec(resources={"limits": {"cpu": "1"}}),
        None,
        ["1m must be greater than or equal to aggregate container requests of 2m"],
    ),
    "huge pages alone": (make_pod().requests("hugepages-2Mi", "4Mi"), None, ["HugePages require cpu or memory"]),
    "a part of a huge page": (
        make_pod().requests("cpu", "1").requests("hugepages-2Mi", "3Mi"),
        None,
        ["3Mi is not positive integer multiple of hugepages-2Mi"] * 2,
    ),
}


@pytest.mark.parametrize(("pod", "limit", "words"), BROKEN.values(), ids=BROKEN)
def test_rules_of_the_api(pod: PodMaker, limit: ParsedLimitRange | None, words: list[str]) -> None:
    found = predict_admission(parse_pod(pod.build()), NamespaceLimitRanges([limit] if limit else [])).invalid
    assert [broken.message for broken in found] == words


def test_a_missing_resource_is_set_again_and_zeros_stay() -> None:
    pod, ranges = parse_pod(make_pod().gpus(1).build()), NamespaceLimitRanges([limits({"max": {GPU: "4"}})])
    left_out = predict_admission(pod, ranges, {ONE: {SLICE: "1"}}, {ONE: {SLICE: "1"}})
    zeroed = predict_admission(pod, ranges, {ONE: {GPU: "0", SLICE: "1"}}, {ONE: {GPU: "0", SLICE: "1"}})
    assert predict_admission(pod, ranges).is_accepted
    assert texts(left_out.amounts.containers[0].limits) == {GPU: "4", SLICE: "1"}
    assert texts(zeroed.amounts.containers[0].limits) == {GPU: "0", SLICE: "1"}


def test_an_amount_that_is_not_a_quantity_is_an_error() -> None:
    with pytest.raises(QuantityError, match="many"):
        predict_admission(parse_pod(make_pod().gpus("many").build()), NamespaceLimitRanges())


def test_the_annotation_is_from_the_last_limit_range_that_sets_something() -> None:
    pod = sidecar(make_pod(), limits={"cpu": "1"})
    holders = apply_request_defaults(read_pod_amounts(parse_pod(pod.build()), {}, {}))
    assert limit_ranger_annotation(
        holders, [limits({"default": {"cpu": "1"}}), limits({"max": {GPU: "4"}, "min": {"cpu": "1"}})]
    ) == (
        "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main; "
        "nvidia.com/gpu request for init container side; nvidia.com/gpu limit for init container side"
    )
    assert limit_ranger_annotation(holders, [limits({"type": "Pod", "max": {"cpu": "4"}})]) is None


NOTED = (
    "LimitRanger plugin set: cpu, nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
)
DEFAULTING = limits({"default": {GPU: "4"}})
INJECTED = {
    "annotated, with the default's amount": (NOTED, "4", [DEFAULTING], True),
    "not annotated: written by the user": ("", "4", [DEFAULTING], False),
    "another amount: written by the user": (NOTED, "2", [DEFAULTING], False),
    "a forged annotation without a LimitRange": (NOTED, "4", [], False),
    "annotated for another container": (NOTED.replace("main", "side"), "4", [DEFAULTING], False),
    "annotated for a container whose name has the same ending": (
        NOTED.replace("main", "no-main"),
        "4",
        [DEFAULTING],
        False,
    ),
    "annotated for another resource": (NOTED.replace(GPU, "nvidia.com/gpu.shared"), "4", [DEFAULTING], False),
    "annotated at a length that LimitRanger never writes": (
        NOTED + "; cpu request for container main" * 3_000,
        "4",
        [DEFAULTING],
        False,
    ),
    "zeros are not injected": (NOTED, "0", [limits({"default": {GPU: "0"}})], False),
}


def injected_in(data: Json, ranges: list[ParsedLimitRange]) -> tuple[InjectedAmount, ...]:
    """Return the injected GPUs of a pod."""
    return find_injected_gpus(parse_pod(data), NamespaceLimitRanges(ranges), lambda: data)


@pytest.mark.parametrize(("note", "count", "ranges", "want"), INJECTED.values(), ids=INJECTED)
def test_injected_gpus_that_are_present(note: str, count: str, ranges: list[ParsedLimitRange], want: bool) -> None:
    given = injected_in(make_pod().gpus(count).annotate(NOTE, note).build(), ranges)
    assert [(one.path, one.resource, one.present) for one in given] == ([(ONE, GPU, True)] if want else [])


def test_the_annotation_is_read_once_for_all_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be long: 6,000 entries, read for each of 200 containers, took 0.4 s of CPU."""
    read: list[str] = []

    def recorded(text: str) -> frozenset[DefaultRecord]:
        read.append(text)
        return read_limit_ranger_annotation(text)

    monkeypatch.setattr(findings, "read_limit_ranger_annotation", recorded)
    pod = make_pod().gpus(4).annotate(NOTE, NOTED)
    for index in range(200):
        pod.container(f"c{index}", resources=of_limits(gpu="4"))
    injected_in(pod.build(), [DEFAULTING])
    assert read == [NOTED]


GIVES_GPUS, GIVES_CPU = limits({"max": {GPU: "4"}}, name="a-gpus"), limits({"default": {"cpu": "1"}}, name="b-cpu")
OF_TWO: dict[str, tuple[PodMaker, list[tuple[str, bool]]]] = {
    "a container without GPUs gets them from the first": (make_pod(), [("a-gpus", True)]),
    "the same amount, written": (make_pod().gpus(4), []),
    "the same amount, written in requests alone": (make_pod().requests(GPU, "4"), []),
    "another amount, written": (make_pod().gpus(2), []),
}


@pytest.mark.parametrize(("pod", "want"), OF_TWO.values(), ids=OF_TWO)
def test_gpus_of_a_limit_range_that_the_annotation_does_not_record(pod: PodMaker, want: list[tuple[str, bool]]) -> None:
    """LimitRanger's annotation names the last LimitRange that set anything, here the one with CPU."""
    after = default_pod_data(pod.build(), NamespaceLimitRanges([GIVES_GPUS, GIVES_CPU]))
    assert GPU not in after["metadata"]["annotations"][NOTE]
    assert [(one.limit_range, one.present) for one in injected_in(after, [GIVES_GPUS, GIVES_CPU])] == want


def test_gpus_that_no_record_tells_apart_count_as_written() -> None:
    after = default_pod_data(make_pod().build(), NamespaceLimitRanges([GIVES_GPUS, GIVES_CPU]))
    del after["metadata"]["managedFields"]
    assert not injected_in(after, [GIVES_GPUS, GIVES_CPU])


def test_injected_gpus_of_a_future_first_pass() -> None:
    trap = limits({"type": "Pod"}, {"max": {GPU: "2"}}, name="trap")
    (given,) = injected_in(make_pod().build(), [trap])
    assert (given.path, given.resource, given.limit_range, given.present) == (ONE, GPU, "trap", False)


@given(gpu_pods(), st.lists(st.sampled_from(["cpu", "memory", GPU]), max_size=2, unique=True), st.booleans())
def test_defaults_are_equal_for_plain_data_and_structs(pod: Any, names: list[str], whole: bool) -> None:
    if whole:
        pod["spec"]["resources"] = {"limits": {"cpu": "16"}}
    ranges = NamespaceLimitRanges([limits({"default": {name: "2"}}, name=f"gives-{name}") for name in names])

    assert parse_pod(default_pod_data(pod, ranges)) == default_pod(parse_pod(pod), ranges)
