"""A pod whose annotations leave no space for the decision record is unchanged: patched, it would be rejected."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.engine.decisions import FOUR, NODES, SIZING
from tests.example_cluster import apply_patch, ask, codes
from webhook.model.decisions import KeepReason, KeepRequest

MOST = 256 * 1024
NOTE = "example.com/note"
INJECTING = "mode: enforce\ninjection: {labels: {team: a}}"
FILLERS = {"of one byte": "a", "of two bytes": "ö", "of four bytes": "𝄞"}


def annotated_pod(text: str, gpus: int = 1) -> PodMaker:
    """A pod of a small need, with a long note."""
    return make_pod().gpus(gpus).needs("8Gi").annotate(NOTE, text)


def size(pod: Json) -> int:
    """The bytes of its annotations, as the API server counts them."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in pod["metadata"]["annotations"].items())


def room() -> int:
    """The bytes of the longest note next to which our records still fit."""
    pod = annotated_pod("")
    return MOST - size(apply_patch(pod, ask(pod, SIZING, nodes=NODES)))


@pytest.mark.parametrize("letter", FILLERS.values(), ids=FILLERS)
def test_a_note_of_letters_that_just_fits_leaves_the_patch(letter: str) -> None:
    width = len(letter.encode())
    text = letter * (room() // width) + "a" * (room() % width)
    pod = annotated_pod(text)
    assert size(apply_patch(pod, ask(pod, SIZING, nodes=NODES))) == MOST


@pytest.mark.parametrize("letter", FILLERS.values(), ids=FILLERS)
def test_a_note_of_letters_one_byte_longer_leaves_the_pod_as_it_is(letter: str) -> None:
    width = len(letter.encode())
    text = letter * (room() // width) + "a" * (room() % width + 1)
    decision = ask(annotated_pod(text), SIZING, nodes=NODES)
    assert decision.patch == ()
    assert decision.outcome == KeepRequest(KeepReason.RECORD_TOO_LARGE)
    assert not decision.applied
    assert decision.gpu_milli_after == decision.gpu_milli_before == 1000
    assert codes(decision) == ["warn GPU-R103"]
    assert "no space" in decision.findings[0].message


LEFT = {
    "a change that is no right-sizing": (annotated_pod("a" * MOST), (INJECTING,), ["warn GPU-R103"]),
    "what it may not request is rejected anyway": (
        annotated_pod("a" * MOST, gpus=8),
        (INJECTING, FOUR),
        ["warn GPU-R103", "enforce GPU-L103"],
    ),
}


@pytest.mark.parametrize(("pod", "policies", "want"), LEFT.values(), ids=LEFT)
def test_a_pod_without_annotation_space_is_evaluated_unchanged(
    pod: PodMaker, policies: tuple[str, ...], want: list[str]
) -> None:
    decision = ask(pod, *policies, nodes=NODES)
    assert decision.patch == ()
    assert codes(decision) == want


def test_a_pod_without_annotation_space_and_without_changes_has_no_finding() -> None:
    assert codes(ask(make_pod().gpus(1).annotate(NOTE, "a" * MOST), SIZING, nodes=NODES)) == []
