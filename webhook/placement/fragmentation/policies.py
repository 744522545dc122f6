"""The rules that can be chosen, by the name that an admin writes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from webhook.placement.fragmentation.fgd import Fgd
from webhook.placement.fragmentation.mixes import Mix
from webhook.placement.fragmentation.packing import Indifferent, MostAllocated, stock_default
from webhook.placement.fragmentation.rule import Rule
from webhook.placement.fragmentation.tab import Tab
from webhook.placement.needs import Need
from webhook.placement.rooms import Floats, Rooms, Site


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
    Policy.DEFAULT: Indifferent,
}


def added(policy: Policy, rooms: Rooms, need: Need) -> Floats | float:
    """What is added to the rule's scores because it cannot be kept by shape: the default looks at memory."""
    return stock_default(rooms, need) if policy is Policy.DEFAULT else 0.0
