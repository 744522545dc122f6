"""Quantities are parsed, printed, compared and added as by apimachinery."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.controlplane.quantities import is_slow_in_go, is_zero, quantity_strings
from tests.cpu_timer import CpuTimer
from webhook.errors import QuantityError
from webhook.model.apimachinery import (
    Quantity,
    add_quantities,
    canonical_text,
    compare_quantities,
    milli_value,
    parse_quantity,
    round_to_milli,
    whole_value,
)

SAMPLES = int(os.environ.get("RIGHTSLICE_FUZZ", "100000"))
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "quantities")
BATCH_SIZE = 100_000
LONGEST_SECONDS = 2.0
"""CPU time for all texts that Go would need hours for; each takes microseconds."""

Answer = list[Any] | None


def go_answers(program: Path, texts: Sequence[str], *only: str) -> list[Answer]:
    """Return the answers of apimachinery for each text; only the canonical text with "text"."""
    lines = "\n".join(json.dumps(text) for text in texts)
    done = subprocess.run([program, *only], input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [json.loads(line) for line in done.stdout.splitlines()]


def our_answers(texts: Sequence[str]) -> list[Answer]:
    """Return our answers."""
    before, answers = parse_quantity("1"), list[Answer]()
    for text in texts:
        try:
            quantity = parse_quantity(text)
        except QuantityError:
            answers.append(None)
            continue
        answers.append(_results_of(quantity, before))
        before = quantity
    return answers


def _results_of(quantity: Quantity, before: Quantity) -> list[Any]:
    order, total = compare_quantities(before, quantity), add_quantities(before, quantity)
    return [
        canonical_text(quantity),
        whole_value(quantity),
        milli_value(quantity),
        canonical_text(round_to_milli(quantity)),
        (order > 0) - (order < 0),
        canonical_text(total),
        whole_value(total),
        milli_value(total),
    ]


def differences(program: Path, seed: str, count: int) -> list[str]:
    """Return every text with different answers, as sentences, except those that Go cannot compute with."""
    texts = [text for text in quantity_strings(Random(seed), count) if not is_slow_in_go(text)]
    answers = zip(texts, go_answers(program, texts), our_answers(texts), strict=True)
    return [f"{text!r}: Go {go}, ours {ours}" for text, go, ours in answers if go != ours]


def slow_texts() -> list[str]:
    """Return texts with exponents that Go computes for hours, or forever."""
    texts = [text for text in quantity_strings(Random(SEED), SAMPLES) if is_slow_in_go(text)]
    assert len(texts) > SAMPLES // 100
    return texts


def test_no_exponent_takes_time() -> None:
    texts = slow_texts()
    with CpuTimer() as timer:
        for text in texts:
            our_answers([text, text])
    assert timer.seconds < max(LONGEST_SECONDS, len(texts) / 5_000)


def test_a_zero_with_any_exponent_is_zero(quantity_program: Path) -> None:
    texts = [text for text in slow_texts() if is_zero(text)]
    ours = [answer and answer[:1] for answer in (our_answers([text])[0] for text in texts)]
    assert ours == go_answers(quantity_program, texts, "text")
    assert ["0"] in ours


def test_every_quantity_agrees_with_apimachinery(quantity_program: Path) -> None:
    for begin in range(0, SAMPLES, BATCH_SIZE):
        assert differences(quantity_program, f"{SEED} {begin}", min(BATCH_SIZE, SAMPLES - begin))[:10] == []
