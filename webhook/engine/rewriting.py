"""What a fit comes to in a pod: the resources that stand in for whole GPUs, and how its offers are reached."""

from __future__ import annotations

from functools import lru_cache

from webhook.engine.asking import PodGpuRequests
from webhook.model.offers import GpuOffer
from webhook.model.paths import FieldPath
from webhook.model.pods import QuantityText, NodeSelectorRequirement
from webhook.model.resources import WHOLE_GPU

ContainerResources = dict[FieldPath, dict[str, QuantityText]]


def offer_affinity(offers: tuple[GpuOffer, ...]) -> tuple[NodeSelectorRequirement, ...]:
    """Expressions that reach these offers and no other shape of the same resource name.

    A resource name alone can stand for several shapes: `mig-1g.10gb` is a quarter of an A100-40GB's memory
    and an eighth of an A100-80GB's.
    """
    return _selector_requirements(tuple([offer.selector for offer in offers]))


@lru_cache(maxsize=1024)
def _selector_requirements(selectors: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[NodeSelectorRequirement, ...]:
    values: dict[str, dict[str, None]] = {}
    for selector in selectors:
        for key, value in selector:
            values.setdefault(key, {})[value] = None
    return tuple(NodeSelectorRequirement(key, "In", tuple(found)) for key, found in values.items())


def substitute_resource(asked: PodGpuRequests, resource: str, *, zero: bool) -> tuple[ContainerResources, ContainerResources]:
    """Limits and requests of every container that asks, once it asks for `resource` instead."""
    limits: ContainerResources = {}
    requests: ContainerResources = {}
    for ask in asked.requests:
        resources = ask.container.resources
        limits[ask.path] = _substitute_amounts(resources.limits, resource, zero=zero)
        if WHOLE_GPU in resources.requests or resource in resources.requests:
            requests[ask.path] = _substitute_amounts(resources.requests, resource, zero=zero)
    return limits, requests


def _substitute_amounts(side: dict[str, QuantityText], resource: str, *, zero: bool) -> dict[str, QuantityText]:
    """Limits or requests of a container after the rewrite.

    The source key becomes "0" where a LimitRange names it: without the key, its default would come back. A "0" that
    stands at the new key already, as a LimitRange gives it, gives way.
    """
    after: dict[str, QuantityText] = {}
    for name, amount in side.items():
        if name == resource:
            continue
        if name != WHOLE_GPU:
            after[name] = amount
            continue
        if zero:
            after[WHOLE_GPU] = "0"
        after[resource] = "1"
    return after
