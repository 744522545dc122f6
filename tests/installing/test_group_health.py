"""doctor about node groups: which grow for what policies assign, and what the others lack."""

from __future__ import annotations

from dataclasses import replace

from tests.builders import Json, make_node
from tests.example_cluster import MIXED
from tests.installing.test_doctor import HEALTHY, NOW, policy
from webhook.cli.commands.doctor import diagnose
from webhook.installing.facts import CheckState, DiagnosticResult

SMALL, POOL = "nvidia.com/mig-1g.10gb", "karpenter.sh/nodepool"


def group_results(*overlays: Json, limits: Json | None = None) -> list[DiagnosticResult]:
    """Return the results about node groups for a NodePool of sliced nodes and a policy that lets groups grow."""
    pool = {"metadata": {"name": "slices"}, "spec": {"limits": limits or {}}, "status": {"resources": {"nodes": "1"}}}
    node = make_node("a", MIXED | {POOL: "slices"}, **{SMALL: 7})
    sizing = policy("sizing", mode="enforce", rightSizing={"whenFull": "grow"})
    facts = replace(HEALTHY, nodes=[node], overlays=list(overlays), node_pools=[pool], policies=[sizing])
    return [found._replace(check="") for found in diagnose(facts, NOW) if "node group" in found.summary]


def test_a_node_pool_without_an_overlay_is_reported_with_the_remedy() -> None:
    lacking, none_grows = group_results()
    assert lacking == DiagnosticResult.warn(
        f"node group slices cannot grow for {SMALL}",
        f'Karpenter expects no slices on new nodes: write a NodeOverlay with capacity {{{SMALL}: "N"}} '
        "(docs/autoscalers.md)",
    )
    assert none_grows.state is CheckState.WARN


def test_a_node_pool_with_an_overlay_grows() -> None:
    [grows] = group_results({"metadata": {"name": "mig"}, "spec": {"capacity": {SMALL: "7"}}})
    assert grows == DiagnosticResult.ok(f"node group slices grows for {SMALL}", f"by {POOL}")


def test_a_node_pool_that_has_reached_its_limit_is_reported() -> None:
    overlay = {"metadata": {"name": "mig"}, "spec": {"capacity": {SMALL: "7"}}}
    full, none_grows = group_results(overlay, limits={"nodes": "1"})
    assert full == DiagnosticResult.warn(
        "node group slices cannot grow: the limit of nodes of its NodePool leaves no node (1)",
        "raise it; pods keep whole GPUs if no slice is free, and may wait for another pool (docs/autoscalers.md)",
    )
    assert none_grows.state is CheckState.WARN
