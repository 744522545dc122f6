"""`doctor` on what the webhook works with: nodes, LimitRanges and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from webhook.cache.snapshot import view_of_objects
from webhook.engine.linting import LIMIT_RANGE, QUOTA, lint_all_objects
from webhook.errors import RightsliceError, SourceLocation, shorten_text
from webhook.installing.facts import CheckState, ClusterFacts, DiagnosticResult, unread_part_result
from webhook.manifests.objects import display_name
from webhook.model.enums import GpuForm
from webhook.model.field_paths import format_path
from webhook.policy.policy_set import Policy
from webhook.report.text import pluralize

Json = dict[str, Any]

PRODUCT_LABEL = "nvidia.com/gpu.product"


def check_nodes(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Do GPU nodes say what they have?"""
    if facts.nodes is None:
        yield unread_part_result(facts, "nodes", "no nodes", "")
        return
    gpus = list_gpu_nodes(facts)
    bare = [node["metadata"]["name"] for node in gpus if PRODUCT_LABEL not in (node["metadata"].get("labels") or {})]
    if not gpus:
        yield DiagnosticResult(
            CheckState.WARN, "no node advertises GPUs", "install NVIDIA's device plugin, or the GPU operator"
        )
    elif bare:
        advice = f"install GPU Feature Discovery, or node affinity cannot match: {abbreviate_names(bare)}"
        yield DiagnosticResult(
            CheckState.FAIL, f"{len(bare)} of {pluralize(len(gpus), 'GPU node')} without {PRODUCT_LABEL}", advice
        )
    else:
        yield DiagnosticResult(CheckState.OK, f"{pluralize(len(gpus), 'GPU node')} with {PRODUCT_LABEL}")


def list_gpu_nodes(facts: ClusterFacts) -> list[Json]:
    def has_gpus(node: Json) -> bool:
        return any(name.startswith("nvidia.com/") for name in node.get("status", {}).get("allocatable") or ())

    return [node for node in facts.nodes or () if has_gpus(node)]


def abbreviate_names(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_gpu_forms(facts: ClusterFacts, policies: Sequence[Policy]) -> Iterator[DiagnosticResult]:
    """Does the device plugin advertise what policies want to give?"""
    sizing = [policy for policy in policies if policy.right_sizing is not None]
    if not sizing or not facts.nodes:
        return
    try:
        offered = _offered_forms(facts.nodes)
    except RightsliceError as error:
        yield DiagnosticResult(CheckState.SKIP, "what nodes offer cannot be read", shorten_text(str(error), 160))
        return
    for policy in sizing:
        assert policy.right_sizing is not None
        wanted = set(policy.right_sizing.forms)
        if wanted & offered:
            yield DiagnosticResult(
                CheckState.OK, f"policy {policy.name} gives {_forms_text(wanted & offered)}, and nodes have it"
            )
        else:
            advice = "no node advertises it: set the device plugin's strategy (MIG: mixed), or the policy's forms"
            yield DiagnosticResult(CheckState.WARN, f"policy {policy.name} gives {_forms_text(wanted)}", advice)


def _offered_forms(nodes: Sequence[Json]) -> set[GpuForm]:
    placed = (
        ({"apiVersion": "v1", "kind": "Node", **node}, SourceLocation(node["metadata"]["name"])) for node in nodes
    )
    return {offer.form for offer in view_of_objects(placed).fleet.offers}


def _forms_text(forms: set[GpuForm]) -> str:
    return " or ".join(sorted(forms))


def check_limits_and_quotas(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Do LimitRanges and quotas do what their authors meant?"""
    if facts.limit_ranges is None or facts.quotas is None:
        yield DiagnosticResult(CheckState.SKIP, "LimitRanges and quotas cannot be read")
        return
    kinds = ((LIMIT_RANGE, facts.limit_ranges), (QUOTA, facts.quotas))
    objects = [{**one, "kind": kind} for kind, found in kinds for one in found]
    classes = [one["metadata"]["name"] for one in facts.device_classes or ()]
    traps = list(_lint_results(objects, classes))
    yield from traps or [DiagnosticResult(CheckState.OK, "no LimitRange and no quota sets a trap")]


def _lint_results(objects: Sequence[Json], classes: Sequence[str]) -> Iterator[DiagnosticResult]:
    for one, findings in zip(objects, lint_all_objects(objects, classes), strict=True):
        for found in findings:
            yield DiagnosticResult(
                CheckState.WARN,
                display_name(one),
                f"[{found.code}] {format_path(found.path)}: {found.message}. {found.fix}",
            )
