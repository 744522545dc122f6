"""What is free: a row a node, the total first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from webhook.model.masks import bits
from webhook.model.modes import Form
from webhook.model.nodelabels import PRODUCT, STRATEGY, number
from webhook.model.offers import Offer
from webhook.model.resources import gpu_resource
from webhook.placement.devices import COUNT
from webhook.placement.fragmentation.fgd import Fgd
from webhook.placement.fragmentation.mixes import Mix
from webhook.placement.islands import MOST_GPUS
from webhook.placement.mig import WHOLE, Card, Geometry, capacity, geometry, taken
from webhook.placement.nodes.cluster import Cluster
from webhook.placement.nvlink import gpu_sets
from webhook.report.words import Paint, Style, columns, gpus, plain, shown

HEAD = ("NODE", "PRODUCT", "GPUS", "USED", "FREE", "ISLAND", "MIG-FITS", "SPLIT-UP", "STATE")
UNSURE = "?"
DISAGREES = "its agent reports more free GPUs than its Node has"


class Stock(msgspec.Struct, frozen=True):
    """What one node has, or all of them together under the name "*".

    Attributes:
        gpus: Physical GPUs.
        used_milli: Thousandths of GPUs that pods hold.
        free_milli: Thousandths that are free, on nodes that take pods.
        closed_milli: Thousandths that nobody holds, on nodes that take no pods: cordoned, not ready, being changed, or
            with as many pods as they take.
        usable: False of a node that takes no pods.
        island: Most free GPUs that NVLink joins pair by pair; None where it is not known which are free.
        fits: Free instances by MIG profile, the largest profile first.
        split_milli: Free thousandths that a pod of the mix with whole GPUs or shares cannot use, on average.
        remark: What the node, or its agent, says that cannot be; "" for nothing.
    """

    name: str
    product: str
    gpus: int
    used_milli: int
    free_milli: int
    island: int | None
    fits: tuple[tuple[str, int], ...]
    split_milli: int
    remark: str = ""
    closed_milli: int = 0
    usable: bool = True

    @property
    def whole_milli(self) -> int:
        """All that it has, held or not."""
        return self.used_milli + self.free_milli + self.closed_milli


def stocks(cluster: Cluster, mix: Mix) -> list[Stock]:
    """The nodes with GPUs, in the cluster's order."""
    rooms = cluster.rooms()
    split = -Fgd(cluster.site, mix.with_gpus()).value(rooms.rows(np.arange(len(cluster.fleet.nodes))))
    found = [i for i, node in enumerate(cluster.fleet.nodes) if node.gpus or node.beyond or cluster.devices[i].cards]
    every = [(i, _stock(cluster, i, round(float(split[i])))) for i in found]
    return [_closed(stock) if _takes_none(cluster, i) else stock for i, stock in every]


def _takes_none(cluster: Cluster, node: int) -> bool:
    return cluster.free[node].full or not cluster.fleet.nodes[node].usable


def _closed(stock: Stock) -> Stock:
    closed = stock.closed_milli + stock.free_milli
    return structs.replace(stock, free_milli=0, closed_milli=closed, island=0, fits=(), split_milli=0, usable=False)


def total(every: Sequence[Stock]) -> Stock:
    """All of them together."""
    fits: dict[str, int] = {}
    for stock in every:
        for profile, count in stock.fits:
            fits[profile] = fits.get(profile, 0) + count
    return Stock(
        name="*",
        product="*",
        gpus=sum(stock.gpus for stock in every),
        used_milli=sum(stock.used_milli for stock in every),
        free_milli=sum(stock.free_milli for stock in every),
        island=max((stock.island for stock in every if stock.island is not None), default=None if every else 0),
        fits=tuple(sorted(fits.items(), key=lambda item: -_size(item[0]))),
        split_milli=sum(stock.split_milli for stock in every),
        closed_milli=sum(stock.closed_milli for stock in every),
    )


def _stock(cluster: Cluster, node: int, split: int) -> Stock:
    known, room = cluster.fleet.nodes[node], cluster.free[node]
    offers = [offer for resource in known.gpus if (offer := cluster.offer(node, resource))]
    uncut = _uncut(cluster, node)
    free = uncut + sum(room.gpus.get(offer.resource, 0) * offer.gpu_milli for offer in offers)
    stranded = sum(room.stranded.get(offer.resource, 0) * offer.gpu_milli for offer in offers)
    whole = uncut + sum(known.gpus[offer.resource] * offer.gpu_milli for offer in offers)
    return Stock(
        name=known.name,
        product=known.labels.get(PRODUCT, "").removeprefix("NVIDIA-"),
        gpus=_physical(known.labels, whole),
        used_milli=sum(cluster.held(node, offer.resource) * offer.gpu_milli for offer in offers),
        free_milli=free,
        island=_island(cluster, node),
        fits=_fits(cluster, node, offers),
        split_milli=min(split, free),
        remark="; ".join(_remarks(cluster, node)),
        closed_milli=stranded,
    )


def _uncut(cluster: Cluster, node: int) -> int:
    """Thousandths of MIG cards of which another instance can be cut."""
    known = geometry(cluster.fleet.nodes[node].labels.get(PRODUCT, ""))
    return sum(_left(known, card) for card in cluster.devices[node].cards) if known else 0


def _left(known: Geometry, card: Card) -> int:
    """The same of one card: what no instance takes."""
    cut = card.used | card.idle
    if not any(capacity(known, taken(known, cut)).values()):
        return 0
    profiles = [known.profile(one.profile) for one in cut]
    return max(0, WHOLE - sum(profile.milli for profile in profiles if profile))


def _remarks(cluster: Cluster, number: int) -> Iterator[str]:
    node, devices = cluster.fleet.nodes[number], cluster.devices[number]
    for resource, units in node.beyond.items():
        yield f"says it has {units} {resource}, more than any node can have: counts as none"
    if _counted(node.labels) > MOST_GPUS:
        yield f"its label {COUNT} says {node.labels[COUNT]}, more than any node can have: what it gives out is counted"
    if node.name in cluster.unusable:
        yield f"its agent's report cannot be used: {cluster.unusable[node.name]}"
    if devices.ill and cluster.whole(number)[1]:
        yield f"GPUs that are ill and counted as free: {', '.join(map(str, bits(devices.ill)))}"
    if devices.whole and devices.free is None:
        yield f"which of its GPUs are free is not known: {DISAGREES}"


def _physical(labels: Mapping[str, str], whole: int) -> int:
    """GPUs that are built in. With MIG strategy single the label counts slices, so what is offered is added up."""
    counted = _counted(labels)
    return counted if 0 < counted <= MOST_GPUS else round(whole / 1000)


def _counted(labels: Mapping[str, str]) -> int:
    """GPUs as a label counts them; 0 where none does."""
    return (number(labels.get(COUNT)) or 0) if labels.get(STRATEGY) != "single" else 0


def _island(cluster: Cluster, node: int) -> int | None:
    free = cluster.whole(node)[1]
    devices = cluster.devices[node]
    if not free:
        return 0
    sets = gpu_sets(devices.topology)
    if devices.free is not None:
        return sets.island(devices.free & ~devices.unhealthy)
    return free if free <= devices.topology.gpus and sets.always_joined(free) else None


def _fits(cluster: Cluster, node: int, offers: Iterable[Offer]) -> tuple[tuple[str, int], ...]:
    """Free instances by profile: those that are cut, and of cards that are known, those that still could be."""
    room = cluster.free[node].gpus
    counts = {offer.profile: room.get(offer.resource, 0) for offer in offers if offer.form is Form.MIG}
    known = geometry(cluster.fleet.nodes[node].labels.get(PRODUCT, ""))
    for card in cluster.devices[node].cards:
        more = capacity(known, taken(known, card.used | card.idle)) if known else {}
        counts |= {name: counts.get(name, 0) + count for name, count in more.items()}
    free = [(profile, count) for profile, count in counts.items() if count]
    return tuple(sorted(free, key=lambda item: -_size(item[0])))


def _size(profile: str) -> int:
    known = gpu_resource(f"nvidia.com/mig-{profile.replace('+', '.')}")
    return known.slices if known else 0


def capacity_table(every: Sequence[Stock], paint: Paint = plain, *, wide: bool = False) -> list[str]:
    """The total, then a row a node."""
    head, *rows = columns([HEAD, *(_row(stock, wide=wide) for stock in [total(every), *every])])
    notes = ["? no agent runs there: which of its GPUs are free is not known"] if _unsure(every) else []
    notes += [f"{shown(stock.name)}: {shown(stock.remark)}" for stock in every if stock.remark]
    return [paint(head, Style.STRONG), *rows, *notes]


def _unsure(every: Iterable[Stock]) -> bool:
    return any(stock.island is None and not stock.remark for stock in every)


def _row(stock: Stock, *, wide: bool) -> tuple[str, ...]:
    whole = stock.whole_milli
    cells = (
        stock.name,
        stock.product,
        str(stock.gpus),
        f"{gpus(stock.used_milli)} ({100 * stock.used_milli // whole}%)" if whole else "",
        gpus(stock.free_milli),
        UNSURE if stock.island is None else str(stock.island or ""),
        ", ".join(f"{count} x {profile}" if wide else profile for profile, count in stock.fits[: None if wide else 1]),
        gpus(stock.split_milli),
        _standing(stock),
    )
    return tuple(shown(cell) or "-" for cell in cells)


def _standing(stock: Stock) -> str:
    """What of a node, or of all of them, is out of reach."""
    idle = f"{gpus(stock.closed_milli)} idle" if stock.closed_milli else ""
    if stock.usable:
        return f"{idle} on nodes that take no pods" if idle else ""
    return f"takes no pods, {idle}" if idle else "takes no pods"


def capacity_document(every: Sequence[Stock]) -> dict[str, Any]:
    """The same as plain data."""
    return {"total": stock_document(total(every)), "nodes": [stock_document(stock) for stock in every]}


def stock_document(stock: Stock) -> dict[str, Any]:
    """One node, or the total, as plain data."""
    return {
        "name": stock.name,
        "product": stock.product,
        "gpus": stock.gpus,
        "usedMilli": stock.used_milli,
        "freeMilli": stock.free_milli,
        "largestIsland": stock.island,
        "migFits": dict(stock.fits),
        "splitUpMilli": stock.split_milli,
        "closedMilli": stock.closed_milli,
        "takesPods": stock.usable,
    }
