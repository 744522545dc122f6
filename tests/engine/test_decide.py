"""decide: the operations it evaluates, and how several policies combine."""

from __future__ import annotations

import pytest

from tests.builders import make_pod
from tests.engine.decisions import ENV, FOUR, NODES, SIZING, bad
from tests.example_cluster import codes, review
from webhook.model.decisions import Decision, KeepReason, KeepRequest


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_an_operation_without_an_object_has_no_findings(operation: str) -> None:
    everywhere = "match: {operations: [CREATE, UPDATE, DELETE, CONNECT]}\n"
    assert review(bad(), everywhere + ENV, operation=operation) == Decision()


def test_an_update_is_evaluated_for_security_only() -> None:
    assert codes(review(bad(), ENV, FOUR)) == ["enforce GPU-S101", "enforce GPU-L103"]
    assert codes(review(bad(), ENV, FOUR, operation="UPDATE")) == ["enforce GPU-S101"]


def test_an_update_is_never_patched() -> None:
    pod, sizing = make_pod().gpus(1).needs("8Gi"), SIZING + "\ninjection: {runtimeClassName: nvidia}"
    assert review(pod, sizing, nodes=NODES).patch
    updated = review(pod, sizing, nodes=NODES, operation="UPDATE")
    assert (updated.patch, updated.applied) == ((), False)
    assert updated.gpu_milli_after == updated.gpu_milli_before == 1000


def test_a_policy_for_one_operation_does_not_apply_to_the_other() -> None:
    only_updates = "match: {operations: [UPDATE]}\n" + ENV
    assert codes(review(bad(), only_updates)) == []
    assert codes(review(bad(), only_updates, operation="UPDATE")) == ["enforce GPU-S101"]


def test_a_pod_without_gpus_has_no_findings_of_gpu_policies() -> None:
    decision = review(make_pod(), FOUR, SIZING, nodes=NODES)
    assert decision.findings == ()
    assert decision.patch == ()
    assert decision.outcome == KeepRequest(KeepReason.NO_GPU_REQUEST)
    assert not decision.involves_gpus


@pytest.mark.parametrize(
    ("modes", "want"),
    [
        (("audit", "warn", "enforce"), "enforce GPU-S101"),
        (("enforce", "warn", "audit"), "enforce GPU-S101"),
        (("warn", "audit"), "warn GPU-S101"),
        (("audit", "audit"), "audit GPU-S101"),
    ],
)
def test_the_strictest_of_several_policies_is_reported_once(modes: tuple[str, ...], want: str) -> None:
    texts = [ENV.replace("enforce", mode) for mode in modes]
    decision = review(bad(), *texts)
    assert codes(decision) == [want]
    assert decision.policies == tuple(f"test-{index}" for index in range(len(modes)))


def test_a_section_may_have_a_mode_of_its_own() -> None:
    assert codes(review(bad(), "mode: audit\nsecurity: {mode: warn, deny: [visibleDevicesEnv]}")) == ["warn GPU-S101"]


def test_two_policies_with_different_findings_are_both_reported() -> None:
    assert codes(review(bad(), FOUR, FOUR.replace("max: 4", "max: 2"))) == ["enforce GPU-L103", "enforce GPU-L103"]
