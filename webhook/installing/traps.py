"""LimitRanges and quotas that do to GPUs what their authors hardly meant.

Sources: LimitRanger gives a container's `max` as its default where it has none; ResourceQuota counts extended
resources as `requests.NAME` alone, and takes any other key without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from webhook.model.quantity import readable
from webhook.model.resources import WHOLE_GPU

Json = Mapping[str, Any]

_GPU = "nvidia.com/"


class Trap(NamedTuple):
    """Where it is, and what it does."""

    where: str
    says: str


def traps(limit_ranges: Sequence[Json], quotas: Sequence[Json]) -> Iterator[Trap]:
    """Every trap in the objects of a cluster."""
    for one in limit_ranges:
        yield from _of_limit_range(one)
    for one in quotas:
        yield from _of_quota(one)


def _of_limit_range(one: Json) -> Iterator[Trap]:
    for item in one.get("spec", {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        given = {**(item.get("max") or {}), **(item.get("default") or {})}
        for name in sorted(name for name, amount in given.items() if name.startswith(_GPU) and readable(amount)):
            side = "default" if name in (item.get("default") or {}) else "max"
            says = f"[GPU-L202] its {side} gives {given[name]} {name} to every container that names none, CPU pods too"
            yield Trap(_called("LimitRange", one), f"{says}. Bound GPUs per pod by a policy instead")
        for name in sorted(
            name for name, amount in (item.get("min") or {}).items() if name.startswith(_GPU) and readable(amount)
        ):
            says = f"[GPU-L201] its min of {name} refuses every container that asks for less, sidecars too"
            yield Trap(_called("LimitRange", one), f"{says}. Remove it")


def _of_quota(one: Json) -> Iterator[Trap]:
    hard = one.get("spec", {}).get("hard") or {}
    for name in sorted(hard):
        bare = name.removeprefix("limits.")
        if bare.startswith(_GPU):
            says = f"[GPU-Q301] its key {name} bounds nothing: extended resources are counted as requests.{bare} alone"
            yield Trap(_called("ResourceQuota", one), f"{says}. Write requests.{bare}")
    whole = f"requests.{WHOLE_GPU}"
    if whole in hard and not any(name.startswith("requests.nvidia.com/mig-") for name in hard):
        says = f"it bounds {whole} and no slices: nothing is right-sized here, since slices would escape it"
        yield Trap(_called("ResourceQuota", one), f"{says}. Add requests.nvidia.com/mig-…, or quota on gpu-milli")


def _called(kind: str, one: Json) -> str:
    metadata = one["metadata"]
    return f"{kind} {metadata.get('namespace', '')}/{metadata['name']}"
