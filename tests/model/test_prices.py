"""GPU prices: from node labels, otherwise from the price table."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_node
from tests.example_cluster import view_of
from webhook.model.prices import NodePrices, PriceTable, node_prices

TABLE = PriceTable("USD", {"l40s": 2_000_000}, "ours", "2026-06-01")


def node(name: str, product: str = "NVIDIA-L40S", gpus: int = 1, **labels: str) -> Json:
    own = {f"rightslice.dev/gpu-price-{key.replace('_', '-')}": value for key, value in labels.items()}
    return make_node(name, ({"nvidia.com/gpu.product": product} if product else {}) | own, **{"nvidia.com/gpu": gpus})


def priced(*nodes: Json) -> NodePrices:
    return node_prices(view_of(*nodes).fleet.nodes, TABLE)


def test_node_costs_its_product_however_it_is_partitioned() -> None:
    found = priced(node("whole"), node("shared", "NVIDIA-L40S-SHARED"))
    assert found.by_node == {"whole": 2_000_000, "shared": 2_000_000}
    assert found.notes == ()


def test_node_label_overrides_the_table() -> None:
    found = priced(node("own", per_hour="0.5"), node("same", per_hour="3", currency="USD"))
    assert found.by_node == {"own": 500_000, "same": 3_000_000}


def test_missing_prices_are_named() -> None:
    found = priced(
        node("b1", "NVIDIA-B300"),
        node("b2", "NVIDIA-B300"),
        node("bare", ""),
        node("euro", per_hour="1", currency="EUR"),
        node("odd", per_hour="x1"),
        node("cpu", "NVIDIA-B200", gpus=0),
    )
    assert found.by_node == {}
    assert found.notes == (
        "node euro: rightslice.dev/gpu-price-currency must be USD as in the price table, found 'EUR': not priced",
        "node odd: rightslice.dev/gpu-price-per-hour must be an amount such as 2.50, found 'x1': not priced",
        "no price for NVIDIA-B300 (2 nodes): its GPUs are counted without a cost. Add it to the price table",
        "1 node without the label nvidia.com/gpu.product: not priced. Label the node with "
        "rightslice.dev/gpu-price-per-hour",
    )


PARTS = ("NVIDIA-B300-MIG-1g.34gb", "NVIDIA-B300-SHARED", "NVIDIA-B300-MIG-1g.34gb-SHARED")


@pytest.mark.parametrize("product", PARTS)
def test_product_to_add_is_the_whole_card(product: str) -> None:
    [note] = priced(node("n", product), node("known")).notes
    assert note.startswith(f"no price for {product} (1 node)")
    assert note.endswith(" Add NVIDIA-B300 to the price table")


def test_gpus_of_slices_have_the_price_of_the_published_product() -> None:
    nodes = view_of(make_node("published"), make_node("plain")).fleet.nodes
    found = node_prices(nodes, TABLE, {"published": "NVIDIA-L40S"})
    assert (found.by_node, found.notes) == ({"published": 2_000_000}, ())
    (note,) = node_prices(nodes, TABLE, {"published": "NVIDIA-B300"}).notes[:1]
    assert note.startswith("no price for NVIDIA-B300 (1 node)")


def test_unused_product_is_named() -> None:
    table = PriceTable("USD", {"l40s": 1, **{f"l40x-{i}": 1 for i in range(7)}}, "ours", "2026-06-01")
    nodes = view_of(node("n")).fleet.nodes
    assert node_prices(nodes, table).notes == (
        "no node has the product l40x-0, l40x-1, l40x-2, l40x-3, l40x-4 and 2 more of the price table: its price is "
        "not used. Write a product as in the node label nvidia.com/gpu.product",
    )
    example = PriceTable("USD", table.by_product, "ours", "2026-06-01", example=True)
    assert node_prices(nodes, example).notes == ()


def test_parts_never_cost_more_than_the_whole() -> None:
    odd = NodePrices("USD", {"n": 1_500}, "ours")
    assert 2 * (odd.price_of("n", 1) or 0) <= (odd.price_of("n", 2) or 0)


def test_part_of_a_card_costs_its_part() -> None:
    found = priced(node("n"))
    assert [found.price_of("n", milli) for milli in (1000, 143, 8000, 0)] == [2_000_000, 286_000, 16_000_000, 0]
    assert found.price_of("elsewhere", 1000) is None


HIGHEST_PRICES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "the most expensive node of a product": (("NVIDIA-L40S",), 3_000_000),
    "the more expensive of two products": (("NVIDIA-L40S", "NVIDIA-L40S-SHARED"), 3_000_000),
    "a product with a price and one without": (("NVIDIA-L40S", "NVIDIA-B300"), None),
    "a product that no node has": (("NVIDIA-B200",), None),
    "no product": ((), None),
}


@pytest.mark.parametrize(("products", "price"), HIGHEST_PRICES.values(), ids=HIGHEST_PRICES)
def test_highest_price_of_several_products(products: tuple[str, ...], price: int | None) -> None:
    found = priced(node("a"), node("b", per_hour="3"), node("s", "NVIDIA-L40S-SHARED"), node("odd", "NVIDIA-B300"))
    assert found.max_price(products) == price


def test_example_prices_are_marked() -> None:
    example = PriceTable("USD", {}, "a list", "2024-12-01", example=True)
    assert node_prices((), example).source.startswith("example prices, not yours: a list (2024-12-01")
    assert not priced(node("n")).source.startswith("example")
