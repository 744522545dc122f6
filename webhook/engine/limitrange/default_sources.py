"""Find the LimitRanges that set amounts by default: one answer for rejections, which name them, and for injected GPUs.

A webhook sees a pod after LimitRanger's first pass. A LimitRange set an amount that equals its default if LimitRanger's
annotation names the amount. The annotation records only the last LimitRange that set anything; whether another one set
an amount is known from the pod's `managedFields`, which list what a client wrote. Without them it counts as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from webhook.engine.gpu_requests import container_at
from webhook.engine.pod_context import PodMutation
from webhook.errors import QuantityError
from webhook.model.apimachinery import compare_quantities
from webhook.model.defaulting import (
    LIMIT_RANGER_ANNOTATION,
    DefaultRecord,
    read_limit_ranger_annotation,
    read_managed_amounts,
)
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_api_quantity
from webhook.model.pod_amounts import LIMITS, REQUESTS, PodAmounts
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements

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


class FirstPass:
    """The defaults that LimitRanger set in a pod before the webhooks. Reads its annotation once."""

    def __init__(self, pod: Pod, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]) -> None:
        self._ranges, self._load_object = ranges, load_object
        recorded = read_limit_ranger_annotation(pod.metadata.annotations.get(LIMIT_RANGER_ANNOTATION, ""))
        possible = [each for each in ranges if all(name in each.defaults(side) for side, name, _ in recorded)]
        self._recorded, self._recorders = recorded, possible if recorded else []

    def find_source(self, container: Container, side: str, name: str) -> str:
        """Return the name of the LimitRange that set an amount of a container; "" for one that a client wrote."""
        amount = container.resources.amounts(side)[name]
        possible = [each for each in self._ranges if _is_default(each, side, name, amount)]
        amount_of = (side, name, container.name)
        if amount_of not in self._recorded:
            possible = [each for each in possible if any(other is not each for other in self._recorders)]
            if possible and (self._written is None or amount_of in self._written):
                return ""
        return possible[0].name if possible else ""

    @cached_property
    def _written(self) -> frozenset[DefaultRecord] | None:
        """The amounts that clients wrote; None if unknown."""
        return read_managed_amounts(self._load_object()["metadata"])


class DefaultSources:
    """The LimitRanges that set amounts of one mutated pod, before or after its change."""

    def __init__(self, mutation: PodMutation, ranges: NamespaceLimitRanges, load_object: Callable[[], Any]) -> None:
        self._mutation, self._ranges = mutation, ranges
        self._first_pass = FirstPass(mutation.pod, ranges, load_object)

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
        changed = amount != container.resources.amounts(side).get(name)
        return "" if changed else self._first_pass.find_source(container, side, name)

    def of_fields(self, fields: Iterable[FieldPath]) -> list[DefaultSource]:
        """Return the LimitRanges that set some of these amounts, with the containers."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for field in fields:
            if name := self.of_field(field):
                containers = found.setdefault((name, str(field[4]), str(field[5])), [])
                containers.append(container_at(self._mutation.pod, field[:3]).name)
        return [DefaultSource(*key, tuple(names)) for key, names in found.items()]

    def with_summed_fields(self, fields: Iterable[FieldPath], amounts: PodAmounts) -> Iterator[FieldPath]:
        """Yield fields, and for each of the pod level that the pod does not set the containers' that it sums up."""
        written = self._mutation.pod.spec.resources or ResourceRequirements()
        for field in fields:
            yield field
            if field[:2] == ("spec", "resources") and field[-1] not in written.amounts(str(field[2])):
                yield from amounts.fields_of(str(field[-1]), str(field[2]))

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
