"""Interned results share equal values and stay equal."""

from __future__ import annotations

import msgspec

from tests.audit.test_pod_audit import NODE, run_audit, running
from tests.report.audit_samples import DENIED, NOTED, audited_pod
from webhook.audit.cluster_audit import ResultInterner


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
