"""Limits that no pod can satisfy together."""

from __future__ import annotations

import pytest

from tests.example_cluster import policies_of, policy
from webhook.cache.bundled_files import bundled_folder
from webhook.policy.impossible_limits import find_impossible_limits
from webhook.policy.written.kinds import GPUPolicy


def sentences(*texts: str) -> list[str]:
    """Return all sentences about some policies."""
    models = [one.model for one in policies_of(*texts).sources if isinstance(one.model, GPUPolicy)]
    return [text for index, one in enumerate(models) for text in find_impossible_limits(one, models[:index])]


def gpus(rule: str, *, at: str = "perPod", resource: str = "nvidia.com/gpu", match: str = "", mode: str = "") -> str:
    """Return a policy that limits GPUs."""
    lines = ["mode: enforce", *([f"match: {match}"] if match else [])]
    return "\n".join([*lines, f"limits: {{{mode}{at}: [{{resource: {resource}, {rule}}}]}}"])


POSSIBLE = {
    "a common amount": (gpus("allowed: [1, 2]"), gpus("allowed: [2, 4]")),
    "an allowed amount within the bounds": (gpus("allowed: [1, 8]"), gpus("max: 4")),
    "bounds that touch": (gpus("min: 2"), gpus("max: 2")),
    "other resources": (gpus("allowed: [1]"), gpus("allowed: [2]", resource="nvidia.com/mig-1g.10gb")),
    "pods and containers": (gpus("allowed: [2]"), gpus("allowed: [1]", at="perContainer")),
    "namespaces that differ": (
        gpus("allowed: [1]", match="{namespaces: [a]}"),
        gpus("allowed: [2]", match="{namespaces: [b]}"),
    ),
    "a policy that forbids GPUs": (gpus("allowed: [1, 2]"), gpus("max: 0", match="{namespaces: [a]}")),
    "a part of a sum": (gpus("allowed: [1]"), gpus("allowed: [2]", resource="nvidia.com/*")),
    "a part of a sum with a ceiling": (gpus("max: 1"), gpus("min: 2", resource="nvidia.com/*")),
    "sums of which one is a part of the other": (
        gpus("max: 1", resource="nvidia.com/mig-*"),
        gpus("min: 2", resource="nvidia.com/*"),
    ),
    "sums that have names in common": (
        gpus("min: 2", resource="nvidia.com/mig-1g*"),
        gpus("max: 1", resource="nvidia.com/*.10gb"),
    ),
    "a policy that only warns": (gpus("allowed: [1]"), gpus("allowed: [2]", mode="mode: warn, ")),
}


@pytest.mark.parametrize("specs", POSSIBLE.values(), ids=POSSIBLE)
def test_limits_that_some_pod_satisfies(specs: tuple[str, str]) -> None:
    assert sentences(policy(specs[0], name="a"), policy(specs[1], name="b")) == []


BOTH = "policies b and a deny every pod that both match with nvidia.com/gpu: limits.perPod allows"
IMPOSSIBLE = {
    "no common amount": (gpus("allowed: [1]"), gpus("allowed: [2, 4]"), f"{BOTH} 2, 4 in b and 1 in a."),
    "a list outside bounds": (gpus("allowed: [1]"), gpus("min: 2"), f"{BOTH} at least 2 in b and 1 in a."),
    "bounds": (gpus("max: 1"), gpus("min: 2, max: 4"), f"{BOTH} 2 to 4 in b and at most 1 in a."),
    "a sum below the least of a part": (
        gpus("max: 1", resource="nvidia.com/*"), gpus("min: 2"), f"{BOTH} at least 2 in b and at most 1 in a.",
    ),
    "a sum below every allowed amount of a part": (
        gpus("allowed: [1, 2]", resource="nvidia.com/*"), gpus("allowed: [4, 8]"), f"{BOTH} 4, 8 in b and 1, 2 in a.",
    ),
    "a sum below the least of a sum that is a part": (
        gpus("max: 1", resource="nvidia.com/*"), gpus("min: 2", resource="nvidia.com/mig-*"),
        f"{BOTH.replace('gpu:', 'mig-*:')} at least 2 in b and at most 1 in a.",
    ),
    "two bounds of one sum": (
        gpus("max: 1", resource="nvidia.com/*"), gpus("min: 2", resource="nvidia.com/*"),
        f"{BOTH.replace('gpu:', '*:')} at least 2 in b and at most 1 in a.",
    ),
    "a glob over other resources, each by itself": (
        gpus("min: 2Gi", resource="hugepages-*"), gpus("max: 1Gi", resource="hugepages-2Mi"),
        f"{BOTH.replace('nvidia.com/gpu:', 'hugepages-2Mi:')} at most 1Gi in b and at least 2Gi in a.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("one", "other", "want"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_limits_that_no_pod_satisfies(one: str, other: str, want: str) -> None:
    [found] = sentences(policy(one, name="a"), policy(other, name="b"))
    assert found == f"{want} Allow a common amount, or make their matches disjoint"


def test_limits_of_one_policy_that_no_pod_satisfies() -> None:
    rules = "{resource: nvidia.com/gpu, allowed: [4]}, {resource: nvidia.com/*, allowed: [2]}"
    [found] = sentences(policy(f"limits: {{mode: enforce, perPod: [{rules}]}}"))
    assert found.startswith("policy test denies every pod with nvidia.com/gpu: limits.perPod allows 4 in test and 2 in")


def test_shipped_limits_are_possible() -> None:
    assert sentences(*(file.read_text() for file in sorted(bundled_folder("policies").glob("*.yaml")))) == []
