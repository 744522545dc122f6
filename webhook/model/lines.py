"""Lines: what one pod of the cluster holds, in as few bytes as tell it. Thousands of pods share each part of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import intern

import msgspec

from webhook.model.effective import effective, effective_requests
from webhook.model.fleet import Fleet
from webhook.model.nodelabels import PRODUCT
from webhook.model.pods import NodeSelectorTerm, Pod
from webhook.model.quantity import NANO
from webhook.model.quota_keys import Counted
from webhook.model.resources import gpu_resource
from webhook.model.scopes import Kind, kind_of

Amounts = tuple[tuple[str, int], ...]
"""Resource names and nano-units."""


class Where(msgspec.Struct, frozen=True, gc=False):
    """The nodes that a pod lets itself be put on: label pairs, and required terms of which one must hold, or None."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None


class Line(msgspec.Struct, frozen=True, gc=False):
    """One pod that has not ended.

    Attributes:
        node: Its node, or "" while it has none.
        requests: What it holds there, or waits for.
        limits: The most it may use of CPU, memory and disk.
        where: Where it may go, while it has no node.
        kind: Which quotas count it.
        claims: Names of the templates that its claims are made from.
    """

    node: str
    requests: Amounts
    limits: Amounts = ()
    where: Where | None = None
    kind: Kind = Kind()
    claims: tuple[str, ...] = ()

    def holds(self, what: Counted) -> int:
        """Nano-units of what a quota counts."""
        side = self.limits if what.side == "limits" else self.requests
        return next((amount for name, amount in side if name == what.resource), 0)

    def gpus(self) -> tuple[tuple[str, int], ...]:
        """Units of each GPU resource."""
        return _gpus(self.requests)


@lru_cache(maxsize=4096)
def _gpus(requests: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple((name, -(-amount // NANO)) for name, amount in requests if gpu_resource(name) is not None)


def line_of(pod: Pod, shared: Callable[[Pod], tuple[Amounts, Amounts]] | None = None) -> Line:
    """The line of a pod that has not ended.

    Args:
        shared: Gives requests and limits where they may be known already.
    """
    requests, limits = (shared or amounts_of)(pod)
    node = intern(pod.spec.node_name)
    asks_gpus = any(gpu_resource(name) is not None for name, _ in requests)
    kind = kind_of(pod, best_effort=_is_best_effort(requests, limits) if pod.spec.resources is None else None)
    where = where_of(pod) if asks_gpus and not node else None
    return Line(node, requests, limits, where, kind, _claims(pod) if pod.spec.resource_claims else ())


def _claims(pod: Pod) -> tuple[str, ...]:
    names = (claim.resource_claim_template_name for claim in pod.spec.resource_claims)
    return tuple(intern(name) for name in names if name)


def _is_best_effort(requests: Amounts, limits: Amounts) -> bool:
    return not any(name in ("cpu", "memory") for name, _ in (*requests, *limits))


def amounts_of(pod: Pod) -> tuple[Amounts, Amounts]:
    """What a pod asks for, and its limits on what quotas count limits of."""
    limits = ((name, effective(pod, name, limits=True)) for name in ("cpu", "memory", "ephemeral-storage"))
    return tuple(effective_requests(pod).items()), tuple((name, amount) for name, amount in limits if amount)


def where_of(pod: Pod) -> Where:
    """Where a pod may go, taints aside."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    return _where(tuple(sorted(pod.spec.node_selector.items())), terms)


_where = lru_cache(maxsize=1024)(Where)
"""Pods of one workload go to the same places."""


def nodes_of(where: Where, fleet: Fleet) -> int:
    """Mask of the nodes that are let in."""
    if not where.labels and where.terms is None:
        return fleet.everyone
    return fleet.select(dict(where.labels), where.terms)


def product_of(where: Where) -> str:
    """The product that a selector names, or ""."""
    return dict(where.labels).get(PRODUCT, "")
