"""`doctor` on what the webhook works with: nodes, LimitRanges and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from webhook.cache.snapshot import snapshot_of
from webhook.engine.linting import LIMIT_RANGE, QUOTA, lint_all
from webhook.errors import Place, RightsliceError, shorten
from webhook.installing.facts import Facts
from webhook.installing.lines import Line, State, unread
from webhook.manifests.objects import named
from webhook.model.modes import Form
from webhook.model.paths import dotted
from webhook.policy.compiled import Policy
from webhook.report.words import count

Json = dict[str, Any]

PRODUCT = "nvidia.com/gpu.product"


def nodes(facts: Facts) -> Iterator[Line]:
    """Do GPU nodes say what they have?"""
    if facts.nodes is None:
        yield unread(facts, "nodes", "no nodes", "")
        return
    gpus = gpu_nodes(facts)
    bare = [node["metadata"]["name"] for node in gpus if PRODUCT not in (node["metadata"].get("labels") or {})]
    if not gpus:
        yield Line(State.WARN, "no node advertises GPUs", "install NVIDIA's device plugin, or the GPU operator")
    elif bare:
        advice = f"install GPU Feature Discovery, or node affinity cannot match: {some(bare)}"
        yield Line(State.FAIL, f"{len(bare)} of {count(len(gpus), 'GPU node')} without {PRODUCT}", advice)
    else:
        yield Line(State.OK, f"{count(len(gpus), 'GPU node')} with {PRODUCT}")


def gpu_nodes(facts: Facts) -> list[Json]:
    def has_gpus(node: Json) -> bool:
        return any(name.startswith("nvidia.com/") for name in node.get("status", {}).get("allocatable") or ())

    return [node for node in facts.nodes or () if has_gpus(node)]


def some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def forms(facts: Facts, policies: Sequence[Policy]) -> Iterator[Line]:
    """Does the device plugin advertise what policies want to give?"""
    sizing = [policy for policy in policies if policy.right_sizing is not None]
    if not sizing or not facts.nodes:
        return
    try:
        offered = _offered(facts.nodes)
    except RightsliceError as error:
        yield Line(State.SKIP, "what nodes offer cannot be read", shorten(str(error), 160))
        return
    for policy in sizing:
        assert policy.right_sizing is not None
        wanted = set(policy.right_sizing.forms)
        if wanted & offered:
            yield Line(State.OK, f"policy {policy.name} gives {_forms_named(wanted & offered)}, and nodes have it")
        else:
            advice = "no node advertises it: set the device plugin's strategy (MIG: mixed), or the policy's forms"
            yield Line(State.WARN, f"policy {policy.name} gives {_forms_named(wanted)}", advice)


def _offered(nodes: Sequence[Json]) -> set[Form]:
    placed = (({"apiVersion": "v1", "kind": "Node", **node}, Place(node["metadata"]["name"])) for node in nodes)
    return {offer.form for offer in snapshot_of(placed).fleet.offers}


def _forms_named(forms: set[Form]) -> str:
    return " or ".join(sorted(forms))


def namespaces(facts: Facts) -> Iterator[Line]:
    """Do LimitRanges and quotas do what their authors meant?"""
    if facts.limit_ranges is None or facts.quotas is None:
        yield Line(State.SKIP, "LimitRanges and quotas cannot be read")
        return
    kinds = ((LIMIT_RANGE, facts.limit_ranges), (QUOTA, facts.quotas))
    objects = [{**one, "kind": kind} for kind, found in kinds for one in found]
    classes = [one["metadata"]["name"] for one in facts.device_classes or ()]
    traps = list(_traps(objects, classes))
    yield from traps or [Line(State.OK, "no LimitRange and no quota sets a trap")]


def _traps(objects: Sequence[Json], classes: Sequence[str]) -> Iterator[Line]:
    for one, findings in zip(objects, lint_all(objects, classes), strict=True):
        for found in findings:
            yield Line(State.WARN, named(one), f"[{found.code}] {dotted(found.path)}: {found.message}. {found.fix}")
