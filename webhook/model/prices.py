"""GPU prices: for one whole card and hour, by product or by node, in millionths of a currency.

A slice or share costs its part of the card: thousandths of a GPU times the card's price.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from types import MappingProxyType

import msgspec

from webhook.errors import abbreviate_names
from webhook.model.fleet import FleetNode
from webhook.model.node_labels import PRODUCT_LABEL, card_product, normalized_product
from webhook.well_known import GROUP

MICRO = 1_000_000
"""Millionths in one unit of a currency."""

PRICE_LABEL = f"{GROUP}/gpu-price-per-hour"
CURRENCY_LABEL = f"{GROUP}/gpu-price-currency"
"""Node labels that override the table, for example 2.50 and USD."""

MAX_PRICE = 1_000_000
"""Units of a currency per hour: more than any card costs in any currency."""

MAX_NAMED_PRODUCTS = 5
"""Products that one note names."""

_AMOUNT = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,6}))?\Z", re.ASCII)


class PriceTable(msgspec.Struct, frozen=True):
    """A price table.

    Attributes:
        currency: ISO 4217 code, for example "USD".
        by_product: Millionths for one whole card and hour, by the product's normalized name.
        source: Source of the prices.
        as_of: Their date, for example "2024-12-01".
        example: True for a table that is only a starting point.
    """

    currency: str
    by_product: Mapping[str, int]
    source: str
    as_of: str
    example: bool = False


class NodePrices(msgspec.Struct, frozen=True):
    """Prices of a fleet's GPUs.

    Attributes:
        currency: ISO 4217 code.
        by_node: Millionths for one whole card and hour, by node name; nodes without a price are missing.
        source: Source of the prices, in words.
        notes: Nodes and products without a price, and why; priced products that no node has.
        by_product: Highest price of each product, by label `nvidia.com/gpu.product`.
    """

    currency: str
    by_node: Mapping[str, int]
    source: str
    notes: tuple[str, ...] = ()
    by_product: Mapping[str, int] = {}

    def price_of(self, node: str, gpu_milli: int) -> int | None:
        """Return millionths per hour for thousandths of a card on a node; None without a price.

        Rounded down, so that parts never exceed the whole.
        """
        price = self.by_node.get(node)
        return None if price is None else gpu_milli * price // 1000

    def max_price(self, products: Iterable[str]) -> int | None:
        """Return the highest price of some products for one whole card and hour; None if one has no price."""
        found = [self.by_product.get(product) for product in products]
        priced = [price for price in found if price is not None]
        return max(priced) if priced and len(priced) == len(found) else None


def parse_micro(text: str) -> int | None:
    """Parse an amount exactly; None if it is invalid, negative, or has over six decimals.

    >>> parse_micro("2.50"), parse_micro("0.526"), parse_micro("-1"), parse_micro("1e3")
    (2500000, 526000, None, None)
    """
    match = _AMOUNT.match(text)
    if match is None or int(match[1]) > MAX_PRICE:
        return None
    return int(match[1]) * MICRO + int((match[2] or "").ljust(6, "0"))


def node_prices(
    nodes: Collection[FleetNode], prices: PriceTable, published: Mapping[str, str] = MappingProxyType({})
) -> NodePrices:
    """Price the nodes with GPUs: by node labels, otherwise by product.

    Args:
        published: Product by node, where ResourceSlices publish it.
    """
    known: dict[str, int] = {}
    max_prices: dict[str, int] = {}
    notes: list[str] = []
    unpriced: dict[str, int] = {}
    for node in nodes:
        if not any(node.gpus.values()) and node.name not in published:
            continue
        problems, price = _price_from_labels(node, prices.currency)
        notes += problems
        product = node.labels.get(PRODUCT_LABEL) or published.get(node.name, "")
        if price is None and not problems:
            price = prices.by_product.get(normalized_product(product))
            if price is None:
                unpriced[product] = unpriced.get(product, 0) + 1
        if price is not None:
            known[node.name] = price
            max_prices[product] = max(max_prices.get(product, 0), price)
    notes += _unpriced_notes(unpriced)
    if not prices.example:
        products = {*published.values(), *(node.labels.get(PRODUCT_LABEL, "") for node in nodes)}
        notes += _unused_price_notes(prices, set(map(normalized_product, products)))
    kind = "example prices, not yours: " if prices.example else ""
    source = f"{kind}{prices.source} ({prices.as_of}, {prices.currency} per card-hour)"
    return NodePrices(prices.currency, known, source, tuple(notes), max_prices)


def _price_from_labels(node: FleetNode, currency: str) -> tuple[list[str], int | None]:
    """Return the price in the node's own labels, or the error in them."""
    text = node.labels.get(PRICE_LABEL)
    if text is None:
        return [], None
    price, unit = parse_micro(text), node.labels.get(CURRENCY_LABEL, currency)
    if price is None:
        return [f"node {node.name}: {PRICE_LABEL} must be an amount such as 2.50, found {text!r}: not priced"], None
    if unit != currency:
        must = f"node {node.name}: {CURRENCY_LABEL} must be {currency} as in the price table, found {unit!r}"
        return [f"{must}: not priced"], None
    return [], price


def _unpriced_notes(unpriced: Mapping[str, int]) -> Iterator[str]:
    for product, count in unpriced.items():
        where = f"{count} node{'s' if count > 1 else ''}"
        if product:
            card = product[: len(card_product(product))]
            missing = "it" if card == product else card
            problem = f"no price for {product} ({where}): its GPUs are counted without a cost"
            yield f"{problem}. Add {missing} to the price table"
        else:
            yield f"{where} without the label {PRODUCT_LABEL}: not priced. Label the node with {PRICE_LABEL}"


def _unused_price_notes(prices: PriceTable, products: Set[str]) -> Iterator[str]:
    """Products of a table that no node has may be mistyped. An example table prices many products."""
    unused = sorted(set(prices.by_product) - products)
    if unused:
        problem = f"no node has the product {abbreviate_names(unused, MAX_NAMED_PRODUCTS)} of the price table"
        yield f"{problem}: its price is not used. Write a product as in the node label {PRODUCT_LABEL}"
