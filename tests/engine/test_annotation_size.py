"""A pod whose annotations leave no space for the decision record is unchanged: patched, it would be rejected."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.engine.decisions import FOUR, NODES, SIZING
from tests.example_cluster import apply_patch, codes, review
from webhook.model.decisions import KeepReason, KeepRequest

MOST = 256 * 1024
NOTE = "example.com/note"
INJECTING = "mode: enforce\ninjection: {labels: {team: a}}"
FILLERS = {"of one byte": "a", "of two bytes": "ö", "of four bytes": "𝄞"}


def annotated_pod(text: str, gpus: int = 1) -> PodMaker:
    """Return a pod with a small need and a long annotation."""
    return make_pod().gpus(gpus).needs("8Gi").annotate(NOTE, text)


def size(pod: Json) -> int:
    """Return the bytes of the pod's annotations, as the API server counts them."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in pod["metadata"]["annotations"].items())


def max_annotation_bytes() -> int:
    """Return the bytes of the longest other annotation with which our records still fit."""
    pod = annotated_pod("")
    return MOST - size(apply_patch(pod, review(pod, SIZING, nodes=NODES)))


@pytest.mark.parametrize("letter", FILLERS.values(), ids=FILLERS)
def test_an_annotation_that_just_fits_keeps_the_patch(letter: str) -> None:
    width = len(letter.encode())
    text = letter * (max_annotation_bytes() // width) + "a" * (max_annotation_bytes() % width)
    pod = annotated_pod(text)
    assert size(apply_patch(pod, review(pod, SIZING, nodes=NODES))) == MOST


@pytest.mark.parametrize("letter", FILLERS.values(), ids=FILLERS)
def test_an_annotation_one_byte_longer_leaves_the_pod_unchanged(letter: str) -> None:
    width = len(letter.encode())
    text = letter * (max_annotation_bytes() // width) + "a" * (max_annotation_bytes() % width + 1)
    decision = review(annotated_pod(text), SIZING, nodes=NODES)
    assert decision.patch == ()
    assert decision.outcome == KeepRequest(KeepReason.RECORD_TOO_LARGE)
    assert not decision.applied
    assert decision.gpu_milli_after == decision.gpu_milli_before == 1000
    assert codes(decision) == ["warn GPU-R103"]
    assert "no space" in decision.findings[0].message


LEFT = {
    "what else is wrong with its annotations is still reported": (
        make_pod().gpus().needs("much").annotate(NOTE, "a" * MOST),
        (SIZING, INJECTING),
        ["warn GPU-R104", "warn GPU-R103"],
    ),
    "a change other than right-sizing": (annotated_pod("a" * MOST), (INJECTING,), ["warn GPU-R103"]),
    "a forbidden request is rejected anyway": (
        annotated_pod("a" * MOST, gpus=8),
        (INJECTING, FOUR),
        ["warn GPU-R103", "enforce GPU-L103"],
    ),
}


@pytest.mark.parametrize(("pod", "policies", "want"), LEFT.values(), ids=LEFT)
def test_a_pod_without_annotation_space_is_evaluated_unchanged(
    pod: PodMaker, policies: tuple[str, ...], want: list[str]
) -> None:
    decision = review(pod, *policies, nodes=NODES)
    assert decision.patch == ()
    assert codes(decision) == want


def test_a_pod_that_would_only_get_a_label_is_not_said_to_be_kept_from_right_sizing() -> None:
    decision = review(annotated_pod("a" * MOST), INJECTING, nodes=NODES)
    assert decision.outcome == KeepRequest(KeepReason.NO_RIGHT_SIZING_POLICY)
    assert decision.findings[0].message == "not changed: its annotations leave no space for the decision record"


def test_a_pod_without_annotation_space_and_without_changes_has_no_finding() -> None:
    assert codes(review(make_pod().gpus(1).annotate(NOTE, "a" * MOST), SIZING, nodes=NODES)) == []
