"""Find which LimitRange sets an amount by default, so that a rejection names it, not only a field that nobody wrote.

A webhook sees a pod after LimitRanger's first pass. An amount was set by a LimitRange if it equals its default and
LimitRanger's annotation names it. The annotation records only the last LimitRange that set anything: what another one
may have set counts too, since its default is the same amount in either case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from webhook.engine.gpu_requests import container_at
from webhook.engine.pod_context import PodMutation
from webhook.errors import QuantityError
from webhook.model.apimachinery import compare_quantities
from webhook.model.defaulting import LIMIT_RANGER_ANNOTATION, read_limit_ranger_annotation
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import ParsedLimitRange, parse_api_quantity
from webhook.model.pod_amounts import LIMITS, REQUESTS, PodAmounts
from webhook.model.pods import QuantityText

MAX_NAMED = 3
"""Containers that a message names."""

_AMOUNT_LENGTH = len(("spec", "containers", 0, "resources", LIMITS, "cpu"))


class DefaultSource(NamedTuple):
    """Amounts of one resource that a LimitRange sets: the limits or the requests of some containers."""

    limit_range: str
    side: str
    resource: str
    containers: tuple[str, ...]

    def __str__(self) -> str:
        return f"LimitRange {self.limit_range!r} gives {self.resource} a default {self.side.removesuffix('s')}"

    def named_containers(self) -> str:
        """Return the names of the containers: "container main", "containers main, side and 2 more"."""
        named, more = ", ".join(self.containers[:MAX_NAMED]), len(self.containers) - MAX_NAMED
        return f"container{'s' * (len(self.containers) > 1)} {named}{f' and {more} more' if more > 0 else ''}"


class DefaultSources:
    """The LimitRanges that set amounts of one mutated pod. Reads LimitRanger's annotation once."""

    def __init__(self, mutation: PodMutation, ranges: Sequence[ParsedLimitRange]) -> None:
        self._mutation, self._ranges = mutation, ranges
        self._recorded = read_limit_ranger_annotation(
            mutation.pod.metadata.annotations.get(LIMIT_RANGER_ANNOTATION, "")
        )
        recorders = [each for each in ranges if all(name in each.defaults(side) for side, name, _ in self._recorded)]
        self._recorders = recorders if self._recorded else []

    def of_field(self, field: FieldPath) -> str:
        """Return the name of the LimitRange that sets an amount; "" for an amount of the pod itself."""
        if len(field) != _AMOUNT_LENGTH or field[1] not in ("containers", "initContainers"):
            return ""
        path, side, name = field[:3], str(field[4]), str(field[5])
        container, (limits, requests) = container_at(self._mutation.pod, path), self._mutation.resources_at(path)
        amount = (limits if side == LIMITS else requests).get(name)
        if amount is None:
            copied = side == REQUESTS and name in limits
            return "" if copied else next((each.name for each in self._ranges if name in each.defaults(side)), "")
        written = container.resources.limits if side == LIMITS else container.resources.requests
        if amount != written.get(name):
            return ""
        candidates = [each for each in self._ranges if _is_default(each, side, name, amount)]
        if (side, name, container.name) not in self._recorded:
            candidates = [each for each in candidates if any(other is not each for other in self._recorders)]
            if (
                side == REQUESTS
                and amount == limits.get(name)
                and not self.of_field((*path, "resources", LIMITS, name))
            ):
                return ""  # the API server copied it from the pod's own limit
        return candidates[0].name if candidates else ""

    def of_fields(self, fields: Iterable[FieldPath]) -> list[DefaultSource]:
        """Return the LimitRanges that set some of these amounts, with the containers."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for field in fields:
            if name := self.of_field(field):
                containers = found.setdefault((name, str(field[4]), str(field[5])), [])
                containers.append(container_at(self._mutation.pod, field[:3]).name)
        return [DefaultSource(*key, tuple(names)) for key, names in found.items()]

    def of_total(self, amounts: PodAmounts, resource: str, side: str) -> str:
        """Return which LimitRanges set parts of a pod's total, as the end of a message; "" if none does."""
        sources = self.of_fields(amounts.fields_of(resource, side))
        return "".join(f"; LimitRange {one.limit_range!r} sets it in {one.named_containers()}" for one in sources)


def _is_default(limit_range: ParsedLimitRange, side: str, name: str, amount: QuantityText) -> bool:
    default = limit_range.defaults(side).get(name)
    try:
        return default is not None and compare_quantities(default, parse_api_quantity(amount)) == 0
    except QuantityError:
        return False
