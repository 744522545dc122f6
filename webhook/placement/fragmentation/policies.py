"""The rules that can be chosen, by the name that an admin writes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from webhook.placement.fragmentation.fgd import FgdScorer
from webhook.placement.fragmentation.mixes import WorkloadMix
from webhook.placement.fragmentation.packing import MostAllocatedScorer, DefaultScorer
from webhook.placement.fragmentation.rule import NodeScorer
from webhook.placement.fragmentation.tab import TabScorer
from webhook.placement.rooms import ClusterCapacity


class ScoringStrategy(StrEnum):
    """By what nodes are ranked."""

    TAB = "tab"
    FGD = "fgd"
    MOST_ALLOCATED = "most-allocated"
    DEFAULT = "default"


SCORERS: dict[ScoringStrategy, Callable[[ClusterCapacity, WorkloadMix], NodeScorer]] = {
    ScoringStrategy.TAB: TabScorer,
    ScoringStrategy.FGD: FgdScorer,
    ScoringStrategy.MOST_ALLOCATED: MostAllocatedScorer,
    ScoringStrategy.DEFAULT: DefaultScorer,
}
