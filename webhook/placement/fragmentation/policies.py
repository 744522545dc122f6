"""The rules that can be chosen, by the name that an admin writes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from webhook.placement.fragmentation.fgd import Fgd
from webhook.placement.fragmentation.mixes import Mix
from webhook.placement.fragmentation.packing import MostAllocated, StockDefault
from webhook.placement.fragmentation.rule import Rule
from webhook.placement.fragmentation.tab import Tab
from webhook.placement.rooms import Site


class Policy(StrEnum):
    """By what nodes are ranked."""

    TAB = "tab"
    FGD = "fgd"
    MOST_ALLOCATED = "most-allocated"
    DEFAULT = "default"


RULES: dict[Policy, Callable[[Site, Mix], Rule]] = {
    Policy.TAB: Tab,
    Policy.FGD: Fgd,
    Policy.MOST_ALLOCATED: MostAllocated,
    Policy.DEFAULT: StockDefault,
}
