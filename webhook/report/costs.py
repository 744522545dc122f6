"""Amounts of GPUs with their cost, and their text: money, prices, and GPUs that have no price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from webhook.model.prices import MICRO, NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.text import format_gpus, sanitize

NO_PRICE = "no price"
MAX_PRICES = 12
"""Prices that a table for people lists."""


class GpuCost(msgspec.Struct, frozen=True):
    """An amount of GPUs on nodes, and its cost.

    Attributes:
        milli: Thousandths of a GPU.
        micro: Millionths of the currency per hour, for the part that has a price.
        unpriced_milli: Thousandths of a GPU on nodes that have no price.
    """

    milli: int = 0
    micro: int = 0
    unpriced_milli: int = 0

    def __add__(self, other: GpuCost) -> GpuCost:
        return GpuCost(self.milli + other.milli, self.micro + other.micro, self.unpriced_milli + other.unpriced_milli)

    def __sub__(self, other: GpuCost) -> GpuCost:
        return GpuCost(self.milli - other.milli, self.micro - other.micro, self.unpriced_milli - other.unpriced_milli)

    @property
    def has_no_price(self) -> bool:
        """True if there are GPUs, and none of them has a price."""
        return 0 < self.milli <= self.unpriced_milli


NO_COST = GpuCost()


class ProductPrice(NamedTuple):
    """Cards of one product that have the same price.

    Attributes:
        product: From the node labels; "" if unlabeled.
        milli: Allocatable thousandths of a GPU at this price.
        micro: Millionths of the currency per card and hour.
    """

    product: str
    milli: int
    micro: int


def gpu_cost(node: str, milli: int, prices: NodePrices | None) -> GpuCost:
    """Return the cost of some thousandths of a GPU on a node."""
    micro = prices.price_of(node, milli) if prices is not None else None
    return GpuCost(milli, micro or 0, milli if micro is None else 0)


def product_prices(nodes: Iterable[NodeCapacity], prices: NodePrices) -> tuple[ProductPrice, ...]:
    """Return the GPUs that have a price by product and price, most GPUs first."""
    gpus: Counter[tuple[str, int]] = Counter()
    for node in nodes:
        if node.name in prices.by_node:
            gpus[node.product, prices.by_node[node.name]] += node.total_milli
    return tuple(ProductPrice(product, milli, micro) for (product, micro), milli in gpus.most_common())


def cost_text(part: GpuCost, whole: GpuCost, unit: str = "") -> str:
    """Format the cost of a part of some GPUs, and for how many GPUs it is known.

    >>> some, none = GpuCost(3000, 2_500_000, 1000), GpuCost(1000, 0, 1000)
    >>> cost_text(some, some, " USD/h"), cost_text(none, some), cost_text(GpuCost(), none), cost_text(GpuCost(), some)
    ('2.50 USD/h for 2 of 3 GPUs', 'no price', 'no price', '0.00')
    """
    if part.has_no_price or whole.has_no_price:
        return NO_PRICE
    priced = part.milli - part.unpriced_milli
    scope = f" for {format_gpus(priced)} of {format_gpus(part.milli)} GPUs" if part.unpriced_milli else ""
    return f"{money_text(part.micro)}{unit}{scope}"


def cost_csv(part: GpuCost, whole: GpuCost) -> int | str:
    """Return the cost in millionths for CSV: empty if the whole has no price."""
    return "" if whole.has_no_price else part.micro


def gpus_lower_bound(known: GpuCost, unknown: GpuCost) -> str:
    """Format an amount of GPUs that is partly unknown: the known part is a lower bound.

    >>> gpus_lower_bound(GpuCost(2000), GpuCost()), gpus_lower_bound(GpuCost(2000), GpuCost(500))
    ('2', 'at least 2')
    >>> gpus_lower_bound(GpuCost(), GpuCost(500))
    'unknown'
    """
    if unknown.milli and not known.milli:
        return "unknown"
    return f"{'at least ' if unknown.milli else ''}{format_gpus(known.milli)}"


def cost_lower_bound(known: GpuCost, unknown: GpuCost, whole: GpuCost) -> str:
    """Format the cost of an amount of GPUs that is partly unknown: that of the known part is a lower bound.

    >>> cost_lower_bound(GpuCost(1000, 2_500_000), GpuCost(500), GpuCost(4000, 10_000_000))
    'at least 2.50'
    """
    if unknown.milli and not known.milli:
        return "unknown"
    return f"{'at least ' if unknown.milli else ''}{cost_text(known, whole)}"


def price_lines(prices: NodePrices, rates: Sequence[ProductPrice]) -> Iterator[str]:
    """Yield the source of the prices, and the prices by product, for people."""
    yield f"Prices                 {sanitize(prices.source)}"
    for rate in rates[:MAX_PRICES]:
        yield f"{'':<23}{product_price_text(rate, prices.currency)}"
    if len(rates) > MAX_PRICES:
        yield f"{'':<23}and {len(rates) - MAX_PRICES} more; JSON has all"


def prices_document(prices: NodePrices, rates: Iterable[ProductPrice]) -> dict[str, Any]:
    """Return the prices as plain data."""
    return {
        "currency": prices.currency,
        "source": prices.source,
        "rates": [{"product": rate.product, "milli": rate.milli, "microPerHour": rate.micro} for rate in rates],
        "notes": list(prices.notes),
    }


def product_price_text(rate: ProductPrice, currency: str) -> str:
    """Format a number of GPUs and their price, both unrounded, so that a reader can recompute the sum."""
    price = f"{_exact_amount(rate.micro, MICRO)} {currency}"
    return sanitize(f"{_exact_amount(rate.milli, 1000)} x {price}: {rate.product or 'product not labeled'}")


def _exact_amount(amount: int, unit: int) -> str:
    whole, part = divmod(amount, unit)
    digits = f"{part:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def money_text(micro: int, currency: str = "") -> str:
    """Format millionths of a currency, rounded to hundredths.

    >>> money_text(1_844_000, "USD"), money_text(-5_000)
    ('1.84 USD', '-0.01')
    """
    cents = (abs(micro) + 5_000) // (MICRO // 100)
    sign = "-" if micro < 0 and cents else ""
    return f"{sign}{cents // 100:,}.{cents % 100:02}{' ' if currency else ''}{currency}"
