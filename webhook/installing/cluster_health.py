"""Checks of `doctor` for nodes, LimitRanges and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook.cache.snapshot import view_of_objects
from webhook.engine.linting import LIMIT_RANGE, QUOTA, lint_all_objects
from webhook.errors import RightsliceError, SourceLocation, shorten_text
from webhook.installing.facts import ClusterFacts, DiagnosticResult, unread_part_result
from webhook.manifests.objects import display_name
from webhook.model.field_paths import format_path
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.policy.policy_set import Policy
from webhook.report.text import pluralize
from webhook.well_known import Json


def check_nodes(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that GPU nodes have product labels."""
    if facts.nodes is None:
        yield unread_part_result(facts, "nodes", "no nodes", "")
        return
    gpus = list_gpu_nodes(facts)
    bare = [node["metadata"]["name"] for node in gpus if PRODUCT_LABEL not in (node["metadata"].get("labels") or {})]
    if not gpus:
        yield DiagnosticResult.warn("no node advertises GPUs", "install NVIDIA's device plugin or the GPU operator")
    elif bare:
        advice = f"install GPU Feature Discovery; without the label no node affinity matches: {abbreviate_names(bare)}"
        yield DiagnosticResult.fail(
            f"{len(bare)} of {pluralize(len(gpus), 'GPU node')} without {PRODUCT_LABEL}", advice
        )
    else:
        yield DiagnosticResult.ok(f"{pluralize(len(gpus), 'GPU node')} with {PRODUCT_LABEL}")


def list_gpu_nodes(facts: ClusterFacts) -> list[Json]:
    def has_gpus(node: Json) -> bool:
        return any(name.startswith("nvidia.com/") for name in node.get("status", {}).get("allocatable") or ())

    return [node for node in facts.nodes or () if has_gpus(node)]


def abbreviate_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def check_gpu_forms(facts: ClusterFacts, policies: Sequence[Policy]) -> Iterator[DiagnosticResult]:
    """Check that nodes advertise the forms of GPU that policies allocate."""
    sizing = [policy for policy in policies if policy.right_sizing is not None]
    if not sizing or not facts.nodes:
        return
    try:
        nodes = [{"apiVersion": "v1", "kind": "Node", **node} for node in facts.nodes]
        view = view_of_objects((node, SourceLocation(node["metadata"]["name"])) for node in nodes)
        offered = {offer.form for offer in view.fleet.offers}
    except RightsliceError as error:
        yield DiagnosticResult.skip("the GPUs that nodes advertise cannot be read", shorten_text(str(error), 160))
        return
    for policy in sizing:
        assert policy.right_sizing is not None
        forms = set(policy.right_sizing.forms)
        if forms & offered:
            allocated = " or ".join(sorted(forms & offered))
            yield DiagnosticResult.ok(f"policy {policy.name} allocates {allocated}, and nodes advertise it")
        else:
            advice = "no node advertises it: set the device plugin's strategy (MIG: mixed) or the policy's forms"
            yield DiagnosticResult.warn(f"policy {policy.name} allocates {' or '.join(sorted(forms))}", advice)


def check_limits_and_quotas(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Lint LimitRanges and quotas."""
    if facts.limit_ranges is None or facts.quotas is None:
        yield DiagnosticResult.skip("LimitRanges and quotas cannot be read")
        return
    kinds = ((LIMIT_RANGE, facts.limit_ranges), (QUOTA, facts.quotas))
    objects = [{**one, "kind": kind} for kind, found in kinds for one in found]
    classes = [one["metadata"]["name"] for one in facts.device_classes or ()]
    problems = [
        DiagnosticResult.warn(
            display_name(one), f"[{found.code}] {format_path(found.path)}: {found.message}. {found.fix}"
        )
        for one, findings in zip(objects, lint_all_objects(objects, classes), strict=True)
        for found in findings
    ]
    yield from problems or [DiagnosticResult.ok("no lint finding for LimitRanges and quotas")]
