"""GPU amounts that LimitRanger put into containers that never asked: nobody's demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from webhook.engine.limitrange.defaulting import LIMIT_RANGER_NOTE, NOTE_HEAD
from webhook.model.apimachinery import compare
from webhook.model.paths import Path
from webhook.model.pods import Container, Pod, Resources
from webhook.model.quantity import readable
from webhook.model.ranges import Range, Ranges, held


class Given(NamedTuple):
    """One GPU amount of LimitRanger's in one container.

    Attributes:
        range: The LimitRange that gives it.
        arrived: True where the pod already has it; False where the first pass is still to come.
    """

    path: Path
    container: str
    resource: str
    range: str
    arrived: bool


class Injected(NamedTuple):
    """GPUs that LimitRanges put into a pod, and what becomes of them.

    Attributes:
        out: True if they are taken out again.
        stays: Why they could not be, "" where that was not tried or is done.
    """

    given: tuple[Given, ...] = ()
    out: bool = False
    stays: str = ""

    def holds(self, path: Path, resource: str) -> bool:
        """Is this amount LimitRanger's, and not the user's?"""
        return any(one.path == path and one.resource == resource for one in self.given)


NOBODY = Injected()


def given_in(pod: Pod, ranges: Ranges) -> tuple[Given, ...]:
    """Every GPU amount above zero that LimitRanger put into a pod, or will put into it."""
    if not ranges.giving:
        return ()
    found: dict[tuple[Path, str], Given] = {}
    for name, limit_range in ranges.giving:
        for path, container in _containers(pod):
            given = _given(pod, path, container, name, limit_range)
            if given is not None:
                found.setdefault((path, name), given)
    return tuple(found.values())


def _containers(pod: Pod) -> Iterator[tuple[Path, Container]]:
    for index, container in enumerate(pod.spec.init_containers):
        yield ("spec", "initContainers", index), container
    for index, container in enumerate(pod.spec.containers):
        yield ("spec", "containers", index), container


def _given(pod: Pod, path: Path, container: Container, name: str, limit_range: Range) -> Given | None:
    resources = container.resources
    if name not in resources.limits and name not in resources.requests:
        return Given(path, container.name, name, limit_range.name, arrived=False)
    note = pod.metadata.annotations.get(LIMIT_RANGER_NOTE, "")
    if name in note and _is_of(limit_range, resources, name) and _note_names(note, container.name, name):
        return Given(path, container.name, name, limit_range.name, arrived=True)
    return None


def _is_of(limit_range: Range, resources: Resources, name: str) -> bool:
    """Is it the LimitRange's very amount? The note alone could be forged."""
    amount = resources.limits.get(name, resources.requests.get(name, "0"))
    if not readable(amount):
        return False
    sides = (limit_range.limits, limit_range.requests)
    return any(name in side and compare(side[name], held(amount)) == 0 for side in sides)


def _note_names(note: str, container: str, name: str) -> bool:
    """Read "LimitRanger plugin set: a, b request for container X; a limit for container X"."""
    for part in note.removeprefix(NOTE_HEAD).split("; "):
        names, _, where = part.partition(" for ")
        if where.rpartition(" ")[2] == container and name in names.rpartition(" ")[0].split(", "):
            return True
    return False
