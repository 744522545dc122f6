"""Policies and limits for resources that are not evaluated, and policies that assign slices that no node has."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_node
from tests.example_cluster import mig_node, policies_of, policy, view_of, whole_node
from webhook.cache.bundled_files import bundled_folder
from webhook.policy.lint import find_missing_slices, find_unmatched
from webhook.policy.written.kinds import GPUPolicy

AMD = "limits: {perPod: [{resource: amd.com/gpu, max: 2}]}"
CASES = {
    "resources of another vendor": (
        'match: {resources: ["amd.com/*", "gpu.intel.com/*"]}\ncuda: {}',
        "matches no pod without resource claims",
    ),
    "resources of a third vendor": ('match: {resources: ["gpu.intel.com/*"]}\ncuda: {}', "matches no pod: "),
    "devices of a claim": (
        'match: {resources: ["deviceclass.resource.kubernetes.io/*"]}\ncuda: {}',
        "matches no pod",
    ),
    "CPU": ("match: {resources: [cpu]}\ncuda: {}", "matches no pod"),
    "limits on resources of another vendor": (AMD, "apply only to pods that also request nvidia.com/*, or claim GPUs"),
    "resources of NVIDIA and another vendor": ('match: {resources: ["amd.com/*", "nvidia.com/gpu"]}\ncuda: {}', ""),
    "any resource": ('match: {resources: ["*"]}\ncuda: {}', ""),
    "slices": ('match: {resources: ["nvidia.com/mig-?g*"]}\ncuda: {}', ""),
    "every object": ("cuda: {}", ""),
    "limits on GPUs and memory": (
        "limits: {perPod: [{resource: nvidia.com/gpu, max: 2}, {resource: memory, max: 1Gi}]}",
        "",
    ),
}


def sentences(*texts: str) -> list[str]:
    """Return all sentences about some policies."""
    models = (one.model for one in policies_of(*texts).sources)
    return [sentence for one in models if isinstance(one, GPUPolicy) for sentence in find_unmatched(one)]


@pytest.mark.parametrize(("spec", "want"), CASES.values(), ids=CASES)
def test_unmatched_policies(spec: str, want: str) -> None:
    found = sentences(policy(spec))
    assert len(found) == bool(want)
    assert all(want in sentence for sentence in found)


def test_shipped_policies_match() -> None:
    assert sentences(*(file.read_text() for file in sorted(bundled_folder("policies").glob("*.yaml")))) == []


NO_SLICES = "policy test right-sizes no pod: no node offers mig, mps, timeSlicing with isolation hardware or more."
MISSING: dict[str, tuple[str, tuple[Json, ...], str]] = {
    "right-sizing, and no node has slices": ("rightSizing: {}", (whole_node(),), NO_SLICES),
    "right-sizing, and some node has slices": ("rightSizing: {}", (whole_node(), mig_node()), ""),
    "right-sizing to shares, where nodes have slices": (
        "rightSizing: {isolation: none, forms: [timeSlicing]}",
        (mig_node(),),
        "no node offers timeSlicing with isolation none or more",
    ),
    "a cluster without GPUs": ("rightSizing: {}", (make_node("cpu"),), ""),
}


@pytest.mark.parametrize(("spec", "nodes", "want"), MISSING.values(), ids=MISSING)
def test_policies_that_assign_slices_that_no_node_has(spec: str, nodes: tuple[Json, ...], want: str) -> None:
    [one] = policies_of(policy(spec)).policies
    found = list(find_missing_slices(one, view_of(*nodes)))

    assert len(found) == bool(want)
    assert all(want in sentence for sentence in found)
