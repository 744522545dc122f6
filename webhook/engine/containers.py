"""The one way to walk over the containers of a pod, whatever their kind.

A check that looks at `spec.containers` alone is a hole: init containers (sidecars among them) and ephemeral
containers reach the same devices.
"""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, PodSpec

MOST_REMEMBERED = 16
"""Containers of the largest pod whose amounts are worth remembering."""

Items = tuple[tuple[str, Amount], ...]

Amounts = tuple[tuple[tuple[Items, Items, bool], ...], ...]
"""What a pod asks for: limits, requests and "is it a sidecar" of each main container, then of each init container."""

Changes = Mapping[Path, Mapping[str, Amount]]
"""New limits or new requests of containers, by the container's path; whole maps."""

NO_CHANGES: Changes = {}


def every_container(spec: PodSpec) -> list[tuple[Path, Container]]:
    """Every container with its path from the root of the Pod, in the order main, init, ephemeral."""
    found: list[tuple[Path, Container]] = [
        (("spec", "containers", i), container) for i, container in enumerate(spec.containers)
    ]
    if spec.init_containers:
        found += [(("spec", "initContainers", i), container) for i, container in enumerate(spec.init_containers)]
    if spec.ephemeral_containers:
        found += [
            (("spec", "ephemeralContainers", i), container) for i, container in enumerate(spec.ephemeral_containers)
        ]
    return found


def amounts_of(spec: PodSpec, limits: Changes = NO_CHANGES, requests: Changes = NO_CHANGES) -> Amounts:
    """What the containers ask for, some of them changed: a key for what is decided by amounts alone.

    Pods of many workloads ask for the same. What a pod says as a whole, and its overhead, are not in it.
    """
    if not limits and not requests:
        return _own_amounts(spec.containers), _own_amounts(spec.init_containers) if spec.init_containers else ()
    return (
        _amounts("containers", spec.containers, limits, requests),
        _amounts("initContainers", spec.init_containers, limits, requests),
    )


def _own_amounts(containers: tuple[Container, ...]) -> tuple[tuple[Items, Items, bool], ...]:
    return tuple(
        [
            (tuple(one.resources.limits.items()), tuple(one.resources.requests.items()), one.restart_policy == "Always")
            for one in containers
        ]
    )


def _amounts(
    kind: str, containers: tuple[Container, ...], limits: Changes, requests: Changes
) -> tuple[tuple[Items, Items, bool], ...]:
    found: list[tuple[Items, Items, bool]] = []
    for index, container in enumerate(containers):
        path, resources = ("spec", kind, index), container.resources
        limited, requested = limits.get(path, resources.limits), requests.get(path, resources.requests)
        found.append((tuple(limited.items()), tuple(requested.items()), container.restart_policy == "Always"))
    return tuple(found)


def is_short(amounts: Amounts) -> bool:
    """Are these few enough to be remembered?"""
    main, init = amounts
    return len(main) + len(init) <= MOST_REMEMBERED
