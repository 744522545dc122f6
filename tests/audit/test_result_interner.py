"""Interned results share equal values and stay equal."""

from __future__ import annotations

import msgspec

from tests.audit.test_pod_audit import NODE, run_audit, running
from tests.builders import make_node, make_pod
from tests.report.audit_samples import DENIED, NOTED, audited_pod
from webhook.audit.cluster_audit import ResultInterner
from webhook.model.decisions import OfferChoice


def test_results_of_one_workload_share_their_values() -> None:
    keep = ResultInterner()
    one, other = (keep(audited_pod(f"p{i}", workload="Job/j", findings=[DENIED, NOTED], after=143)) for i in range(2))
    assert one.decision is other.decision
    assert one.pod_details is other.pod_details
    assert one.findings[0].finding is other.findings[0].finding is one.decision.findings[0]
    assert one.findings[0].location != other.findings[0].location


def test_different_results_stay_different() -> None:
    keep = ResultInterner()
    one, other = keep(audited_pod("a", after=143)), keep(audited_pod("b", after=286))
    assert (one.decision.gpu_milli_after, other.decision.gpu_milli_after) == (143, 286)


def test_only_the_object_is_dropped() -> None:
    keep = ResultInterner()
    for each in run_audit(NODE, running("a", 1), running("b", 3)):
        assert each.stored
        assert keep(each) == msgspec.structs.replace(each, stored={})


def test_right_sized_pods_of_a_cluster_with_more_nodes_than_bits_of_a_machine_word() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    units = {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 28}
    nodes = [make_node("n", labels, **units), *(make_node(f"n{i}", labels, **units) for i in range(99))]
    pods = [make_pod(name).gpus(1).needs("8Gi").spec(nodeName="n").build() for name in ("a", "b")]
    policy = "\n".join(
        (
            "apiVersion: rightslice.dev/v1alpha1",
            "kind: GPUPolicy",
            "metadata: {name: smaller}",
            "spec: {mode: enforce, rightSizing: {isolation: hardware, evidence: [declared]}}",
        )
    )

    one, other = map(ResultInterner(), run_audit(*nodes, *pods, policy=policy))

    assert isinstance(one.decision.outcome, OfferChoice)
    assert one.decision.outcome == other.decision.outcome
