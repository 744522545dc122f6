"""What GPUs cost: a price for one whole card and hour, by product or by node, in whole millionths of a currency.

A slice or a share costs its part of the card: thousandths of a GPU times the card's price.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

import msgspec

from webhook.model.fleet import FleetNode
from webhook.model.nodelabels import PRODUCT
from webhook.model.products import card_of, normalised

MICRO = 1_000_000
"""Millionths in one unit of a currency."""

PRICE_LABEL = "rightslice.dev/gpu-price-per-hour"
CURRENCY_LABEL = "rightslice.dev/gpu-price-currency"
"""What an admin may write on a node instead of, or over, the table: 2.50 and USD."""

MOST = 1_000_000
"""Units of a currency an hour: more than any card costs in any currency."""

MOST_NAMED = 5
"""Products of a table that are named in one note."""

_AMOUNT = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,6}))?\Z", re.ASCII)


class Prices(msgspec.Struct, frozen=True):
    """A price table.

    Attributes:
        currency: ISO 4217 code, for example "USD".
        by_product: Millionths of it for one whole card and hour, by the product's normalised name.
        source: Where the prices come from.
        as_of: The day they held, for example "2024-12-01".
        example: True for a table that is only to be started from.
    """

    currency: str
    by_product: Mapping[str, int]
    source: str
    as_of: str
    example: bool = False


class NodePrices(msgspec.Struct, frozen=True):
    """What the GPUs of a fleet cost.

    Attributes:
        currency: ISO 4217 code.
        by_node: Millionths of it for one whole card and hour, by node name; a node that is not in it has no price.
        source: Where the prices come from, in words for people.
        notes: Each node or product that has no price, and why; products with a price that no node has.
        by_product: The same for the dearest node of each product, as `nvidia.com/gpu.product` stands on nodes.
    """

    currency: str
    by_node: Mapping[str, int]
    source: str
    notes: tuple[str, ...] = ()
    by_product: Mapping[str, int] = {}

    def of(self, node: str, gpu_milli: int) -> int | None:
        """Millionths of the currency an hour for thousandths of a card on a node; None where there is no price.

        Rounded down, so that parts never come to more than the whole.
        """
        price = self.by_node.get(node)
        return None if price is None else gpu_milli * price // 1000

    def dearest(self, products: Iterable[str]) -> int | None:
        """Millionths for one whole card and hour of the dearest of some products; None where one has no price."""
        found = [self.by_product.get(product) for product in products]
        priced = [price for price in found if price is not None]
        return max(priced) if priced and len(priced) == len(found) else None


def micro(text: str) -> int | None:
    """Read an amount as it is written, exactly; None for what is none, is negative, or has over six decimals.

    >>> micro("2.50"), micro("0.526"), micro("-1"), micro("1e3")
    (2500000, 526000, None, None)
    """
    match = _AMOUNT.match(text)
    if match is None or int(match[1]) > MOST:
        return None
    return int(match[1]) * MICRO + int((match[2] or "").ljust(6, "0"))


def node_prices(nodes: Collection[FleetNode], prices: Prices) -> NodePrices:
    """Price the nodes with GPUs: by what is written on the node, else by its product."""
    known: dict[str, int] = {}
    notes: list[str] = []
    strangers: dict[str, int] = {}
    for node in nodes:
        if not any(node.gpus.values()):
            continue
        fault, price = _on_node(node, prices.currency)
        notes += fault
        product = node.labels.get(PRODUCT, "")
        if price is None and not fault:
            price = prices.by_product.get(normalised(product))
            if price is None:
                strangers[product] = strangers.get(product, 0) + 1
        if price is not None:
            known[node.name] = price
    notes += _unpriced(strangers)
    if not prices.example:
        notes += _unused(prices, {normalised(node.labels.get(PRODUCT, "")) for node in nodes})
    return NodePrices(prices.currency, known, _words(prices), tuple(notes), _dearest(nodes, known))


def _dearest(nodes: Iterable[FleetNode], known: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        if node.name in known:
            product = node.labels.get(PRODUCT, "")
            found[product] = max(found.get(product, 0), known[node.name])
    return found


def _on_node(node: FleetNode, currency: str) -> tuple[list[str], int | None]:
    """The price that the node's own labels say, or what is wrong with them."""
    text = node.labels.get(PRICE_LABEL)
    if text is None:
        return [], None
    price, unit = micro(text), node.labels.get(CURRENCY_LABEL, currency)
    if price is None:
        return [f"node {node.name}: {PRICE_LABEL} must be an amount such as 2.50, found {text!r}: not priced"], None
    if unit != currency:
        must = f"node {node.name}: {CURRENCY_LABEL} must be {currency} as in the price table, found {unit!r}"
        return [f"{must}: not priced"], None
    return [], price


def _unpriced(strangers: Mapping[str, int]) -> Iterator[str]:
    for product, count in strangers.items():
        where = f"{count} node{'s' if count > 1 else ''}"
        if product:
            card = product[: len(card_of(product))]
            add = "it" if card == product else card
            said = f"no price for {product} ({where}): its GPUs are counted, its money is not"
            yield f"{said}. Add {add} to the price table"
        else:
            yield f"{where} without the label {PRODUCT}: not priced. Label the node with {PRICE_LABEL}"


def _unused(prices: Prices, products: Set[str]) -> Iterator[str]:
    """The products of a table that no node has: one may be mistyped. An example prices many cards for many."""
    unused = sorted(set(prices.by_product) - products)
    if unused:
        more = f" and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
        said = f"no node has the product {', '.join(unused[:MOST_NAMED])}{more} of the price table"
        yield f"{said}: its price is not used. Write a product as the label {PRODUCT} of nodes has it"


def _words(prices: Prices) -> str:
    kind = "example prices, not yours: " if prices.example else ""
    return f"{kind}{prices.source} ({prices.as_of}, {prices.currency} for a card and hour)"
