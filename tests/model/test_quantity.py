"""quantity: Kubernetes amounts, exactly, and texts that are not quantities."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.errors import QuantityError
from webhook.model.quantity import (
    NANO,
    format_nano,
    parse_mebibytes,
    parse_nano,
    parse_nano_or_none,
    parse_units,
    parse_whole_number,
)

READ: dict[str, tuple[str | int | float, str]] = {
    "a number": ("12", "12"),
    "a number from YAML": (8, "8"),
    "a fraction from YAML": (0.5, "0.5"),
    "thousandths": ("1500m", "1.5"),
    "millionths": ("3u", "0.000003"),
    "billionths": ("7n", "0.000000007"),
    "finer amounts round up": ("0.0000000001", "0.000000001"),
    "finer negative amounts round away from zero": ("-0.0000000001", "-0.000000001"),
    "thousands": ("1k", "1000"),
    "an exponent": ("1e3", "1000"),
    "an exponent below zero": ("15e-1", "1.5"),
    "E alone is exa": ("1E", "1000000000000000000"),
    "binary": ("8Gi", str(8 << 30)),
    "a binary fraction": ("1.5Ki", "1536"),
    "below zero": ("-1", "-1"),
    "with a plus": ("+1", "1"),
    "no digit before the point": (".5", "0.5"),
    "no digit after it": ("5.", "5"),
    "no digits, which the API server reads as zero": (".", "0"),
    "a suffix alone": ("k", "0"),
    "binary, capped at 64 bits": ("8Ei", str((1 << 63) - 1)),
}
INVALID: dict[str, str | int | float] = {
    "nothing": "",
    "a binary suffix too large for 64 bits, alone": "Ei",
    "a word": "many",
    "two decimal points": "1.2.3",
    "an unknown suffix": "1gi",
    "a blank inside": "1 Gi",
    "an exponent and a suffix": "1Ki3",
    "hexadecimal": "0x10",
    "not a number": float("nan"),
    "infinity": float("inf"),
    "non-ASCII digits": "٣",
    "a number of a thousand digits": "9" * 1000,
    "an exponent that would be slow to compute": "1e999999999",
    "an integer above the maximum": 10**100,
}


@pytest.mark.parametrize(("amount", "want"), READ.values(), ids=READ)
def test_parse(amount: str | int | float, want: str) -> None:
    assert parse_nano(amount) == int(Decimal(want) * NANO)


@pytest.mark.parametrize("amount", INVALID.values(), ids=INVALID)
def test_errors(amount: str | int | float) -> None:
    with pytest.raises(QuantityError):
        parse_nano(amount)
    assert parse_nano_or_none(amount) is None
    assert parse_whole_number(amount) is None


def test_every_other_unit_rounds_up() -> None:
    assert (parse_units("1500m"), parse_mebibytes("1")) == (2, 1)
    assert (parse_units("2"), parse_mebibytes("8Gi")) == (2, 8192)
    assert parse_nano_or_none(None) is None


def test_a_whole_number_or_none() -> None:
    assert (
        parse_whole_number("2"),
        parse_whole_number("1000m"),
        parse_whole_number("1k"),
        parse_whole_number("0.5"),
        parse_whole_number("-1"),
    ) == (2, 1, 1000, None, -1)


@given(st.integers(0, 10**30))
def test_formatted_amounts_parse_to_no_less(value: int) -> None:
    assert 0 <= parse_nano(format_nano(value)) - value < 1_000_000


@given(st.from_regex(r"[0-9]{1,12}(m|k|M|G|[KMG]i)?", fullmatch=True))
def test_a_usual_amount_is_what_any_quantity_is(text: str) -> None:
    """Amounts of few digits are read without the parser; a blank before them leads to it."""
    assert parse_nano(text) == parse_nano(f" {text}")


@given(st.text(alphabet="0123456789.+-eEkKMGTPmunix ", max_size=12))
def test_any_text_is_a_quantity_or_an_error(text: str) -> None:
    amount = parse_nano_or_none(text)
    if amount is not None:
        assert parse_nano(text) == amount
        return
    with pytest.raises(QuantityError, match="found"):
        parse_nano(text)
