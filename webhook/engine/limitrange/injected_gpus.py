"""GPU amounts that LimitRanger put into containers that never asked: nobody's demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from webhook.engine.limitrange.defaulting import LIMIT_RANGER_ANNOTATION, LIMIT_RANGER_PREFIX
from webhook.model.apimachinery import compare_quantities
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import NamespaceLimitRanges, ParsedLimitRange, parse_api_quantity
from webhook.model.pods import Container, Pod, ResourceRequirements
from webhook.model.quantity import parse_nano_or_none


class InjectedAmount(NamedTuple):
    """One GPU amount of LimitRanger's in one container.

    Attributes:
        range: The LimitRange that gives it.
        arrived: True where the pod already has it; False where the first pass is still to come.
    """

    path: FieldPath
    container: str
    resource: str
    limit_range: str
    present: bool


class InjectedGpus(NamedTuple):
    """GPUs that LimitRanges put into a pod, and what becomes of them.

    Attributes:
        out: True if they are taken out again.
        stays: Why they could not be, "" where that was not tried or is done.
    """

    amounts: tuple[InjectedAmount, ...] = ()
    removed: bool = False
    kept_reason: str = ""

    def contains(self, path: FieldPath, resource: str) -> bool:
        """Is this amount LimitRanger's, and not the user's?"""
        return any(one.path == path and one.resource == resource for one in self.amounts)


NO_INJECTED_GPUS = InjectedGpus()


def find_injected_gpus(pod: Pod, ranges: NamespaceLimitRanges) -> tuple[InjectedAmount, ...]:
    """Every GPU amount above zero that LimitRanger put into a pod, or will put into it."""
    if not ranges.gpu_defaults:
        return ()
    found: dict[tuple[FieldPath, str], InjectedAmount] = {}
    for name, limit_range in ranges.gpu_defaults:
        for path, container in _init_then_main_containers(pod):
            given = _find_injected_amount(pod, path, container, name, limit_range)
            if given is not None:
                found.setdefault((path, name), given)
    return tuple(found.values())


def _init_then_main_containers(pod: Pod) -> Iterator[tuple[FieldPath, Container]]:
    for index, container in enumerate(pod.spec.init_containers):
        yield ("spec", "initContainers", index), container
    for index, container in enumerate(pod.spec.containers):
        yield ("spec", "containers", index), container


def _find_injected_amount(
    pod: Pod, path: FieldPath, container: Container, name: str, limit_range: ParsedLimitRange
) -> InjectedAmount | None:
    resources = container.resources
    if name not in resources.limits and name not in resources.requests:
        return InjectedAmount(path, container.name, name, limit_range.name, present=False)
    note = pod.metadata.annotations.get(LIMIT_RANGER_ANNOTATION, "")
    if (
        name in note
        and _equals_limit_range_default(limit_range, resources, name)
        and _annotation_names(note, container.name, name)
    ):
        return InjectedAmount(path, container.name, name, limit_range.name, present=True)
    return None


def _equals_limit_range_default(limit_range: ParsedLimitRange, resources: ResourceRequirements, name: str) -> bool:
    """Is it the LimitRange's very amount? The note alone could be forged."""
    amount = resources.limits.get(name, resources.requests.get(name, "0"))
    if not parse_nano_or_none(amount):
        return False
    sides = (limit_range.default_limits, limit_range.default_requests)
    return any(name in side and compare_quantities(side[name], parse_api_quantity(amount)) == 0 for side in sides)


def _annotation_names(note: str, container: str, name: str) -> bool:
    """Read "LimitRanger plugin set: a, b request for container X; a limit for container X"."""
    for part in note.removeprefix(LIMIT_RANGER_PREFIX).split("; "):
        names, _, where = part.partition(" for ")
        if where.rpartition(" ")[2] == container and name in names.rpartition(" ")[0].split(", "):
            return True
    return False
