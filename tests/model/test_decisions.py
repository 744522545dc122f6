"""Reasons to keep a GPU request: stable words for scripts, sentences for people."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.house.checkout import read_checkout_file
from webhook.model.decisions import Decision, KeepReason, KeepRequest


@pytest.mark.parametrize("reason", list(KeepReason))
def test_a_reason_is_a_camel_case_word_with_a_sentence(reason: KeepReason) -> None:
    assert re.fullmatch(r"([A-Z][a-z]+|GPUs?)+", reason.value)
    assert " " in reason.sentence
    assert not reason.sentence.endswith(".")


def test_a_reason_is_written_as_its_word_and_printed_as_its_sentence() -> None:
    kept = KeepRequest(KeepReason.MULTIPLE_GPUS, "2")
    assert msgspec.json.decode(msgspec.json.encode(kept))["reason"] == "MultipleGPUs"
    assert str(kept) == f"{KeepReason.MULTIPLE_GPUS.sentence}: 2"


def test_a_decision_without_gpus_has_no_reason() -> None:
    kept = KeepRequest(KeepReason.NO_EVIDENCE)
    assert Decision(outcome=kept, involves_gpus=True).keep_reason == ""
    assert Decision(outcome=kept, gpu_milli_before=1000).keep_reason == "NoEvidence"


def test_the_page_lists_every_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", read_checkout_file("docs/rightsizing.md"), re.MULTILINE)
    assert rows == [(reason.value, reason.sentence, reason.fix) for reason in KeepReason]
