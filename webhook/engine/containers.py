"""The one way to walk over the containers of a pod, whatever their kind.

A check that looks at `spec.containers` alone is a hole: init containers (sidecars among them) and ephemeral
containers reach the same devices.
"""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.field_paths import FieldPath
from webhook.model.pods import Container, PodSpec, QuantityText

MAX_CACHED_CONTAINERS = 16
"""Containers of the largest pod whose amounts are worth remembering."""

AmountItems = tuple[tuple[str, QuantityText], ...]

ContainerAmounts = tuple[tuple[tuple[AmountItems, AmountItems, bool], ...], ...]
"""What a pod asks for: limits, requests and "is it a sidecar" of each main container, then of each init container."""

ResourceChanges = Mapping[FieldPath, Mapping[str, QuantityText]]
"""New limits or new requests of containers, by the container's path; whole maps."""

NO_CHANGES: ResourceChanges = {}


def containers_of_every_kind(spec: PodSpec) -> list[tuple[FieldPath, Container]]:
    """Every container with its path from the root of the Pod, in the order main, init, ephemeral."""
    found: list[tuple[FieldPath, Container]] = [
        (("spec", "containers", i), container) for i, container in enumerate(spec.containers)
    ]
    if spec.init_containers:
        found += [(("spec", "initContainers", i), container) for i, container in enumerate(spec.init_containers)]
    if spec.ephemeral_containers:
        found += [
            (("spec", "ephemeralContainers", i), container) for i, container in enumerate(spec.ephemeral_containers)
        ]
    return found


def container_amounts(
    spec: PodSpec, limits: ResourceChanges = NO_CHANGES, requests: ResourceChanges = NO_CHANGES
) -> ContainerAmounts:
    """What the containers ask for, some of them changed: a key for what is decided by amounts alone.

    Pods of many workloads ask for the same. What a pod says as a whole, and its overhead, are not in it.
    """
    if not limits and not requests:
        return _unchanged_amounts(spec.containers), _unchanged_amounts(
            spec.init_containers
        ) if spec.init_containers else ()
    return (
        _changed_amounts("containers", spec.containers, limits, requests),
        _changed_amounts("initContainers", spec.init_containers, limits, requests),
    )


def _unchanged_amounts(containers: tuple[Container, ...]) -> tuple[tuple[AmountItems, AmountItems, bool], ...]:
    return tuple(
        [
            (tuple(one.resources.limits.items()), tuple(one.resources.requests.items()), one.restart_policy == "Always")
            for one in containers
        ]
    )


def _changed_amounts(
    kind: str, containers: tuple[Container, ...], limits: ResourceChanges, requests: ResourceChanges
) -> tuple[tuple[AmountItems, AmountItems, bool], ...]:
    found: list[tuple[AmountItems, AmountItems, bool]] = []
    for index, container in enumerate(containers):
        path, resources = ("spec", kind, index), container.resources
        limited, requested = limits.get(path, resources.limits), requests.get(path, resources.requests)
        found.append((tuple(limited.items()), tuple(requested.items()), container.restart_policy == "Always"))
    return tuple(found)


def is_cacheable(amounts: ContainerAmounts) -> bool:
    """Are these few enough to be remembered?"""
    main, init = amounts
    return len(main) + len(init) <= MAX_CACHED_CONTAINERS
