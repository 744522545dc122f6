"""Money written down: amounts, the prices that they come from, and which GPUs have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from webhook.model.prices import MICRO, NodePrices
from webhook.report.capacity import NodeCapacity
from webhook.report.text import format_gpus, sanitize
from webhook.report.workloads import GpuCost

NO_PRICE = "no price"
MAX_PRICES = 12
"""Prices that are listed for people."""


class ProductPrice(NamedTuple):
    """What cards of one product and price come to.

    Attributes:
        product: As nodes say it; "" where they do not.
        milli: Thousandths of a GPU that nodes give out at this price.
        micro: Millionths of the currency for a card and hour.
    """

    product: str
    milli: int
    micro: int


def product_prices(stocks: Iterable[NodeCapacity], prices: NodePrices) -> tuple[ProductPrice, ...]:
    """GPUs by product and price; those without a price are in none."""
    found: Counter[tuple[str, int]] = Counter()
    for stock in stocks:
        if stock.name in prices.by_node:
            found[stock.product, prices.by_node[stock.name]] += stock.total_milli
    return tuple(ProductPrice(product, milli, micro) for (product, micro), milli in found.most_common())


def has_no_price(some: GpuCost) -> bool:
    """Are there GPUs, and none of them has a price?"""
    return 0 < some.milli <= some.unpriced_milli


def cost_text(some: GpuCost, whole: GpuCost, unit: str = "") -> str:
    """What a part of an amount of GPUs costs, and of how many that is not known; nothing of a whole without prices is.

    >>> some, none = Spent(3000, 2_500_000, 1000), Spent(1000, 0, 1000)
    >>> cost(some, some, " USD/h"), cost(none, some), cost(Spent(), none), cost(Spent(), some)
    ('2.50 USD/h for 2 of 3 GPUs', 'no price', 'no price', '0.00')
    """
    if has_no_price(some) or has_no_price(whole):
        return NO_PRICE
    known = some.milli - some.unpriced_milli
    part = f" for {format_gpus(known)} of {format_gpus(some.milli)} GPUs" if some.unpriced_milli else ""
    return f"{money_text(some.micro)}{unit}{part}"


def cost_micro_cell(some: GpuCost, whole: GpuCost) -> int | str:
    """The same as a cell of CSV, in millionths: empty where nothing of the whole has a price."""
    return "" if has_no_price(whole) else some.micro


def price_lines(prices: NodePrices, rates: Sequence[ProductPrice]) -> Iterator[str]:
    """Where prices come from, and the prices, for people."""
    yield f"Prices                 {sanitize(prices.source)}"
    for rate in rates[:MAX_PRICES]:
        yield f"{'':<23}{product_price_text(rate, prices.currency)}"
    if len(rates) > MAX_PRICES:
        yield f"{'':<23}and {len(rates) - MAX_PRICES} more; JSON has all"


def prices_document(prices: NodePrices, rates: Iterable[ProductPrice]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "currency": prices.currency,
        "source": prices.source,
        "rates": [{"product": rate.product, "milli": rate.milli, "microPerHour": rate.micro} for rate in rates],
        "notes": list(prices.notes),
    }


def product_price_text(rate: ProductPrice, currency: str) -> str:
    """How many GPUs there are at a price; both unrounded, so that anybody can reckon it again."""
    price = f"{_exact_amount(rate.micro, MICRO)} {currency}"
    return sanitize(f"{_exact_amount(rate.milli, 1000)} x {price}: {rate.product or 'product not labelled'}")


def _exact_amount(amount: int, unit: int) -> str:
    """An amount of thousandths or millionths with all its digits, and none that say nothing."""
    whole, part = divmod(amount, unit)
    digits = f"{part:0{len(str(unit)) - 1}}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def money_text(micro: int, currency: str = "") -> str:
    """Millionths of a currency to the nearest hundredth.

    >>> money(1_844_000, "USD"), money(-5_000)
    ('1.84 USD', '-0.01')
    """
    cents = (abs(micro) + 5_000) // (MICRO // 100)
    sign = "-" if micro < 0 and cents else ""
    return f"{sign}{cents // 100:,}.{cents % 100:02}{' ' if currency else ''}{currency}"
