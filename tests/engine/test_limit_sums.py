"""Rules with a glob bound the sum of the GPUs that it matches, by name, by claims and by device classes."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.engine.test_claimed_gpus import (
    CLUSTER,
    GPU,
    PREFIX,
    claim,
    claiming,
    decide_on,
    exactly,
    first,
    limits,
)
from tests.engine.test_limits import with_init
from tests.example_cluster import mig_node, review, view_of
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path

SMALL, MEDIUM, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"
SLICES, ALL = "nvidia.com/mig-*", "nvidia.com/*"


def at_most(resource: str, units: int, of: str = "perPod") -> str:
    return limits(f'{{resource: "{resource}", max: {units}}}', of=of)


def rule(resource: str, bound: str, of: str = "perPod") -> str:
    return limits(f'{{resource: "{resource}", {bound}}}', of=of)


def requesting(**amounts: int) -> PodMaker:
    """Return a pod with slices in one container, by the first letter of their size."""
    pod = make_pod().namespace("team")
    for size, resource in (("small", SMALL), ("medium", MEDIUM), ("large", LARGE), ("gpus", "nvidia.com/gpu")):
        if size in amounts:
            pod = pod.requests(resource, amounts[size])
    return pod


def limit_findings(decision: Decision) -> list[str]:
    """Return the texts of the findings about limits."""
    return [str(each) for each in decision.findings if each.code.startswith("GPU-L")]


class SumCase(NamedTuple):
    """A policy and a pod, and what the findings say; nothing if it is admitted."""

    policy: str
    pod: PodMaker
    words: tuple[str, ...] = ()


SUMS = {
    "one of each profile": SumCase(
        at_most(SLICES, 1),
        requesting(small=2, medium=1),
        (f"a pod's nvidia.com/mig-* must be at most 1 in sum (found 3: 2 {SMALL}, 1 {MEDIUM}). Request 1 in sum.",),
    ),
    "as many as the sum allows": SumCase(at_most(SLICES, 3), requesting(small=2, medium=1)),
    "several of one profile, which names it": SumCase(
        at_most(SLICES, 1),
        requesting(small=2),
        (f"a pod's {SMALL} must be at most 1 (found 2). Write 1.",),
    ),
    "another resource beside one slice": SumCase(at_most(SLICES, 1), requesting(small=1, gpus=4)),
    "whole GPUs and slices": SumCase(
        at_most(ALL, 4), requesting(small=1, gpus=4), ("must be at most 4 in sum (found 5: ",)
    ),
    "a zero adds nothing": SumCase(at_most(SLICES, 1), requesting(small=1, medium=0)),
    "no slice is allowed": SumCase(
        at_most(SLICES, 0),
        requesting(small=1, medium=1),
        ("must be at most 0 in sum (found 2: ", "Request none of them."),
    ),
    "two containers": SumCase(
        at_most(SLICES, 1),
        requesting(small=1).container("b", resources={"limits": {MEDIUM: "1"}}),
        (f"found 2: 1 {SMALL}, 1 {MEDIUM}",),
    ),
    "an init container, whose slice stays allocated": SumCase(
        at_most(SLICES, 1), with_init(requesting(small=1), "i", MEDIUM, "1"), ("(found 2: ",)
    ),
    "each container within its own sum": SumCase(
        at_most(SLICES, 1, "perContainer"), requesting(small=1).container("b", resources={"limits": {MEDIUM: "1"}})
    ),
    "a container over its sum": SumCase(
        at_most(SLICES, 1, "perContainer"),
        requesting(small=1, medium=1),
        (
            "nvidia.com/mig-* must be at most 1 in sum (found 2: ",
            "spec.containers[0].resources.limits['nvidia.com/mig-1g.10gb']",
        ),
    ),
    "below the least sum": SumCase(
        rule(SLICES, "min: 4"),
        requesting(small=2, medium=1),
        ("must be at least 4 in sum (found 3: ", "Request 4 in sum."),
    ),
    "the least sum": SumCase(rule(SLICES, "min: 3"), requesting(small=2, medium=1)),
    "no slice is below no least sum": SumCase(rule(SLICES, "min: 3"), requesting(gpus=1)),
    "a sum that is not listed": SumCase(
        rule(SLICES, "allowed: [1, 2, 4]"),
        requesting(small=2, medium=1),
        ("must be one of 1, 2, 4 in sum (found 3: ", "Request 4, or 2 in sum."),
    ),
    "a sum that is listed": SumCase(rule(SLICES, "allowed: [3]"), requesting(small=2, medium=1)),
    "a rule for one name and one for the sum": SumCase(
        limits(f"{{resource: {SMALL}, max: 1}}", f'{{resource: "{SLICES}", max: 2}}'),
        requesting(small=2, medium=1),
        ("must be at most 2 in sum", f"a pod's {SMALL} must be at most 1 (found 2)"),
    ),
    "memory of GPUs in MiB, by itself": SumCase(
        at_most(ALL, 1000), requesting(gpus=1, small=1).requests("nvidia.com/gpumem", 1000)
    ),
    "more of it than allowed": SumCase(
        at_most(ALL, 1000),
        requesting(gpus=1, small=1).requests("nvidia.com/gpumem", 1001),
        ("a pod's nvidia.com/gpumem must be at most 1000 (found 1001)",),
    ),
    "more of it than a container may have": SumCase(
        at_most(ALL, 1000, "perContainer"),
        requesting(gpus=1, small=1).requests("nvidia.com/gpumem", 1001),
        ("nvidia.com/gpumem must be at most 1000 (found 1001)",),
    ),
    "CPU and memory, each by itself": SumCase(
        limits('{resource: "*", max: 64Gi}'), requesting(gpus=1, small=1).requests("memory", "64Gi").requests("cpu", 8)
    ),
    "huge pages of two sizes, each by itself": SumCase(
        limits('{resource: "hugepages-*", max: 1Gi}'),
        requesting(gpus=1, small=1).requests("hugepages-2Mi", "1Gi").requests("hugepages-1Gi", "1Gi"),
    ),
}


@pytest.mark.parametrize("case", SUMS.values(), ids=SUMS)
def test_a_rule_with_a_glob_bounds_the_sum(case: SumCase) -> None:
    found = limit_findings(review(case.pod, case.policy))

    assert all(words in "\n".join(found) for words in case.words), found
    assert bool(found) is bool(case.words)


def test_the_fix_of_a_sum_satisfies_every_policy() -> None:
    found = limit_findings(
        review(requesting(small=5, medium=2), at_most(SLICES, 6), rule(SLICES, "allowed: [1, 4, 8]"))
    )

    assert [text.rpartition("). ")[2] for text in found] == ["Request 4 in sum."] * 2


class FixCase(NamedTuple):
    """Rules of a section, a pod, and the fixes of its findings."""

    rules: tuple[str, ...]
    pod: PodMaker
    fixes: list[str]


WHOLE, IN_ALL = "resource: nvidia.com/gpu", 'resource: "nvidia.com/*"'
OF_PARTS = "Request a sum that the limits of all its parts allow."
FIXES = {
    "the least of a sum may come from another name": FixCase(
        (f'resource: "{SLICES}", max: 1', f"{IN_ALL}, min: 4"), requesting(gpus=1, small=2), [OF_PARTS, "Write 1."]
    ),
    "a choice of sums may come from another name": FixCase(
        (f"resource: {SMALL}, max: 1", f"{IN_ALL}, allowed: [2, 4]"), requesting(gpus=2, small=2), ["Write 1."]
    ),
    "no name may have more than the sum": FixCase(
        (f"resource: {SMALL}, allowed: [1, 4]", f"{IN_ALL}, max: 3"), requesting(gpus=1, small=2), ["Write 1."]
    ),
    "the sum of one name alone bounds it in full": FixCase(
        (f"{WHOLE}, allowed: [1, 3, 4]", f"{IN_ALL}, allowed: [3, 8]"), requesting(gpus=2), ["Write 3."] * 2
    ),
    "parts whose maxima do not add up to the sum": FixCase(
        (f"{IN_ALL}, allowed: [2, 4]", 'resource: "nvidia.com/g*", max: 1', 'resource: "nvidia.com/m*", max: 2'),
        requesting(gpus=1, small=2),
        [OF_PARTS],
    ),
    "names whose maxima do not add up to the sum": FixCase(
        (f"{IN_ALL}, allowed: [2, 4]", f"{WHOLE}, max: 1", f"resource: {SMALL}, max: 2"),
        requesting(gpus=1, small=2),
        [OF_PARTS],
    ),
    "a wider sum with a lower maximum": FixCase(
        (f'resource: "{SLICES}", allowed: [1, 4]', f"{IN_ALL}, max: 3"), requesting(small=2, large=1), [OF_PARTS]
    ),
    "a rule for names that are not requested": FixCase(
        (f"{IN_ALL}, allowed: [2, 4]", f"resource: {LARGE}, max: 1"),
        requesting(gpus=1, small=2),
        ["Request 4, or 2 in sum."],
    ),
    "a sum of which nothing is allowed": FixCase(
        (f"{IN_ALL}, max: 0", f"{WHOLE}, max: 1"), requesting(gpus=1, small=2), ["Request none of them."] * 1
    ),
}


@pytest.mark.parametrize("of", ["perPod", "perContainer"])
@pytest.mark.parametrize("case", FIXES.values(), ids=FIXES)
def test_no_fix_is_impossible_by_another_rule(case: FixCase, of: str) -> None:
    decision = review(case.pod, limits(*(f"{{{each}}}" for each in case.rules), of=of))

    assert [each.fix for each in decision.findings if each.code.startswith("GPU-L")] == case.fixes


def test_the_sum_of_the_only_container_is_bounded_as_its_pod_is() -> None:
    policies = at_most(ALL, 2), rule(ALL, "allowed: [1, 4]", "perContainer")
    found = review(requesting(gpus=1, small=2), *policies).findings

    assert [each.fix for each in found if each.code.startswith("GPU-L")] == ["Request 1 in sum."] * 2


ANY_SLICE, TWO_SLICES = exactly("mig"), exactly("mig", count=2)
EITHER = first(exactly("mig", "3g.40gb", count=2), GPU)


class ClaimSumCase(NamedTuple):
    """The requests of a claim and a pod that has it, the sum under a glob, and its parts."""

    requests: list[Json]
    pod: PodMaker
    glob: str
    units: int
    parts: str


CLAIM_SUMS = {
    "a request for any of three profiles counts once": ClaimSumCase(
        [TWO_SLICES], claiming("t"), SLICES, 2, f"2 {SMALL} or nvidia.com/mig-1g.10gb.me or {LARGE}"
    ),
    "two requests count together": ClaimSumCase(
        [exactly("mig", "1g.10gb"), exactly("mig", "3g.40gb", name="h")],
        claiming("t"),
        SLICES,
        2,
        f"1 {SMALL}, 1 {LARGE}",
    ),
    "alternatives count as the largest": ClaimSumCase([EITHER], claiming("t"), ALL, 2, f"2 nvidia.com/gpu or {LARGE}"),
    "a claim beside a name": ClaimSumCase(
        [exactly("mig", "3g.40gb")], claiming("t").requests(SMALL, 1), SLICES, 2, f"1 {SMALL}, 1 {LARGE}"
    ),
    "a claim and the same name": ClaimSumCase(
        [exactly("mig", "1g.10gb")],
        claiming("t").requests(SMALL, 1).requests(LARGE, 1),
        SLICES,
        3,
        f"2 {SMALL}, 1 {LARGE}",
    ),
    "a class by its resource name": ClaimSumCase(
        [GPU], claiming("t").requests(f"{PREFIX}mig", 2), ALL, 3, "1 nvidia.com/gpu, 2 "
    ),
    "a class whose own name the glob matches too": ClaimSumCase(
        [GPU], claiming("t").requests("example.com/slice", 2), "*.com/*", 3, "1 nvidia.com/gpu, 2 "
    ),
}


@pytest.mark.parametrize("of", ["perPod", "perContainer"])
@pytest.mark.parametrize("case", CLAIM_SUMS.values(), ids=CLAIM_SUMS)
def test_devices_of_claims_count_once_in_a_sum(case: ClaimSumCase, of: str) -> None:
    template = claim("ResourceClaimTemplate", *case.requests)

    assert limit_findings(decide_on(case.pod, at_most(case.glob, case.units, of), template)) == []
    [found] = limit_findings(decide_on(case.pod, at_most(case.glob, case.units - 1, of), template))
    assert f"at most {case.units - 1} in sum (found {case.units}: {case.parts}" in found


def test_a_sum_of_claims_names_a_field_that_requests_some() -> None:
    template = claim("ResourceClaimTemplate", TWO_SLICES)
    [by_pod] = decide_on(claiming("t"), at_most(SLICES, 1), template).denials
    [by_container] = decide_on(claiming("t"), at_most(SLICES, 1, "perContainer"), template).denials
    unused = make_pod().namespace("team").spec(resourceClaims=claiming("t").build()["spec"]["resourceClaims"])
    [by_nobody] = decide_on(unused, at_most(SLICES, 1, "perContainer"), template).denials

    fields = [format_path(each.path) for each in (by_pod, by_container, by_nobody)]
    assert fields == ["spec.resourceClaims[0]", "spec.containers[0].resources.claims", "spec.resourceClaims[0]"]
    assert "nvidia.com/mig-* that no container uses must be at most 1 in sum (found 2: " in by_nobody.message


def test_a_claim_is_warned_about_a_sum_that_its_pods_exceed() -> None:
    data = claim("ResourceClaimTemplate", exactly("mig", "1g.10gb"), exactly("mig", "3g.40gb", name="h"))
    [found] = [each for each in decide_on(data, at_most(SLICES, 1)).findings if each.code == "GPU-L103"]

    assert (found.mode, found.fix) == (PolicyMode.WARN, "Request at most 1 in sum.")
    assert found.message.endswith("a pod's nvidia.com/mig-* must be at most 1 in sum, found up to 2")
    assert limit_findings(decide_on(data, at_most(SLICES, 2))) == []


def test_claims_with_equal_units_and_other_alternatives_are_told_apart() -> None:
    """A pod that passed may not answer for one whose claims get more devices."""
    policy = at_most(SLICES, 1)
    one_of_two = claim("ResourceClaimTemplate", first(exactly("mig", "1g.10gb"), exactly("mig", "3g.40gb")), name="a")
    both = claim("ResourceClaimTemplate", exactly("mig", "1g.10gb"), exactly("mig", "3g.40gb", name="h"), name="b")
    view = view_of(*CLUSTER, one_of_two, both)

    assert [len(limit_findings(review(claiming(name), policy, view=view))) for name in ("a", "b", "a")] == [0, 1, 0]


def test_a_pod_that_also_requests_gpus_of_a_class_keeps_its_gpu_and_is_limited() -> None:
    """With a smaller slice, its GPU would not count, and the others of the class would not be checked."""
    policy = limits("{resource: nvidia.com/gpu, max: 1}") + "\nrightSizing: {whenFull: wait}"
    alone, both = requesting(gpus=1).needs("8Gi"), requesting(gpus=1).needs("8Gi").requests(f"{PREFIX}gpu", 2)

    assert decide_on(alone, policy, mig_node()).patch
    assert [each.code for each in decide_on(both, policy, mig_node()).denials] == ["GPU-L103"]


GLOBS = [SLICES, ALL, "nvidia.com/mig-?g.*"]
COUNTS = st.dictionaries(st.sampled_from([SMALL, MEDIUM, LARGE, "nvidia.com/gpu"]), st.integers(0, 3), max_size=2)
CLAIMS = st.lists(st.sampled_from([ANY_SLICE, TWO_SLICES, EITHER, GPU, exactly("mig", "1g.10gb")]), max_size=3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(COUNTS, CLAIMS, st.sampled_from(GLOBS), st.integers(0, 3), st.sampled_from(["perPod", "perContainer"]))
def test_a_sum_admits_nothing_that_the_same_bound_by_name_rejects(
    amounts: dict[str, int], requests: list[Json], glob: str, most: int, of: str
) -> None:
    requests = [each | {"name": f"r{index}"} for index, each in enumerate(requests)]
    pod = claiming(*(["t"] if requests else []))
    for name, count in amounts.items():
        pod = pod.requests(name, count)
    template = claim("ResourceClaimTemplate", *requests)
    matched = re.compile(glob.replace("*", ".*").replace("?", "."))
    names = [SMALL, MEDIUM, LARGE, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb.me"]
    by_name = limits(*(f"{{resource: {name}, max: {most}}}" for name in names if matched.fullmatch(name)), of=of)

    if limit_findings(decide_on(pod, by_name, template)):
        assert limit_findings(decide_on(pod, at_most(glob, most, of), template))
