"""load_price_list: a price table, or all errors with their locations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.cache.bundled_files import bundled_folder
from webhook.model.prices import MAX_PRICE, MICRO, PriceTable, parse_micro
from webhook.policy.price_list import load_price_list

HEAD = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPriceList
metadata: {name: ours}
currency: USD
asOf: "2026-06-01"
source: contract 4711
"""


def table(prices: str, head: str = HEAD) -> str:
    return f"{head}prices: {prices}\n"


ONE = "[{product: NVIDIA-L40S, perHour: '1.86'}]"

ERRORS = {
    "an amount below zero": (
        table("[{product: A, perHour: -1}]"),
        "p:7:32: prices[0].perHour: must be the price of one GPU per hour, from 0 to 1000000, with at most six "
        'decimals, found -1. Write an amount such as "2.50"',
    ),
    "a word as an amount": (table("[{product: A, perHour: cheap}]"), "found 'cheap'"),
    "true as an amount": (table("[{product: A, perHour: true}]"), "found true"),
    "NaN as an amount": (table("[{product: A, perHour: '.nan'}]"), "found '.nan'"),
    "an amount above the maximum": (table("[{product: A, perHour: '1000001'}]"), "from 0 to 1000000"),
    "seven decimals": (table("[{product: A, perHour: '0.1234567'}]"), "at most six decimals"),
    "a currency in words": (
        table(ONE, HEAD.replace("USD", "dollars")),
        "p:4:11: currency: must be a currency code of three letters (ISO 4217), found 'dollars'",
    ),
    "no currency": (table(ONE, HEAD.replace("currency: USD\n", "")), "currency"),
    "a day that does not exist": (table(ONE, HEAD.replace("06-01", "02-30")), "must be the date of the prices"),
    "one product under two names": (
        table("[{product: NVIDIA-L40S, perHour: 1}, {product: L40S-SHARED, perHour: 2}]"),
        "prices[1].product: must have one price, found 'L40S-SHARED'",
    ),
    "a product without a name": (table("[{product: ' ', perHour: 1}]"), "must be a product as in the node label"),
    "no metadata": (
        table(ONE, HEAD.replace("metadata: {name: ours}\n", "")),
        "GPUPriceList: must have the field metadata, found none. Write metadata: {name: my-prices}",
    ),
    "no prices": (table("[]"), "prices"),
    "a misspelled key": (table("[{product: A, perhour: 1}]"), "Did you mean perHour?"),
    "another kind": (table(ONE, HEAD.replace("GPUPriceList", "GPUPolicy")), "GPUPriceList"),
    "a newer version": (table(ONE, HEAD.replace("v1alpha1", "v2")), "must be rightslice.dev/v1alpha1"),
    "two tables": (f"{table(ONE)}---\n{table(ONE)}", "must contain one GPUPriceList, found 2 documents"),
    "an empty file": ("", "found 0 documents"),
    "invalid YAML": ("{", "p:"),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(text: str, message: str) -> None:
    loaded = load_price_list(text, "p")
    assert loaded.prices is None
    assert message in "\n".join(map(str, loaded.errors))


def test_a_valid_list() -> None:
    prices = "[{product: NVIDIA-A100-SXM4-80GB, perHour: '2.345678'}, {product: Tesla-T4, perHour: 0}]"
    assert load_price_list(table(prices), "p").prices == PriceTable(
        currency="USD",
        by_product={"a100-sxm4-80gb": 2_345_678, "tesla-t4": 0},
        source="contract 4711",
        as_of="2026-06-01",
    )


def test_the_shipped_list_is_an_example() -> None:
    read = load_price_list((bundled_folder("examples") / "prices" / "example.yaml").read_text(), "p")
    assert read.prices is not None, read.errors
    assert read.prices.example
    assert read.prices.as_of
    assert read.prices.source


@given(st.integers(0, MAX_PRICE * MICRO))
def test_amounts_are_exact(amount: int) -> None:
    assert parse_micro(f"{amount // MICRO}.{amount % MICRO:06}") == amount
