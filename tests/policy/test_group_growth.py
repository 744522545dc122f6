"""Problems of policies with node groups, as doctor and policy lint report them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, make_node
from tests.engine.test_growth import (
    AKS,
    EKS,
    GKE,
    KARPENTER,
    MILLI,
    SMALL,
    UNREADY,
    labels_without,
    machines,
    overlay,
    paused_machines,
    pool,
    settings,
    slices,
)
from tests.example_cluster import GPU_TAINT, MIXED, policies_of, policy, view_of, whole_node
from webhook.policy.group_growth import GroupProblem, find_group_problems

LABEL = {"k8s.amazonaws.com/accelerator": "a100"}
GROW = "rightSizing: {whenFull: grow}"
TEAM_TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
MAX_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
NONE_GROWS = "policy test lets node groups grow, and none offers a slice or share"


def without_size(machine: Json) -> dict[str, str]:
    """Return the annotations of machines without their maximum size."""
    annotations = machine["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if not key.endswith("max-size")}


def with_size(most: str) -> Json:
    """Return machines of another group with a maximum size."""
    made = machines()
    made["metadata"] = {"name": "a", "annotations": without_size(made) | {MAX_SIZE: most}}
    return made


class Case(NamedTuple):
    policy: str
    objects: tuple[Json, ...]
    want: list[str]


CASES = {
    "a group of cluster-autoscaler grows": Case(GROW, (slices(),), []),
    "a policy that needs no growth": Case("rightSizing: {}", (slices(KARPENTER),), []),
    "a policy that lets pods wait": Case(
        "rightSizing: {whenFull: wait}",
        (slices(),),
        ["policy test lets pods wait for slices that no new node may have"],
    ),
    "no groups": Case(GROW, (whole_node(), slices("")), [NONE_GROWS]),
    "a NodePool without a NodeOverlay": Case(
        GROW, (slices(KARPENTER),), [f"node group slices cannot grow for {SMALL}", NONE_GROWS]
    ),
    "a NodePool with a NodeOverlay": Case(GROW, (slices(KARPENTER), overlay()), []),
    "slices that the policy does not assign": Case(
        "rightSizing: {whenFull: grow, isolation: none, forms: [timeSlicing]}", (slices(KARPENTER),), [NONE_GROWS]
    ),
    "sliced nodes with the label of the cloud": Case(
        GROW,
        (slices(more=LABEL),),
        [
            "node group slices cannot grow: cluster-autoscaler counts nodes with its GPU label and without "
            "nvidia.com/gpu as not ready",
            NONE_GROWS,
            "cluster-autoscaler counts mig as idle, whatever slices pods hold, and as not ready",
        ],
    ),
    "they may be removed whatever the policy says": Case(
        "rightSizing: {}",
        (slices(GKE, more={"cloud.google.com/gke-accelerator": "a100"}),),
        ["cluster-autoscaler counts mig as idle, whatever slices pods hold, and as not ready"],
    ),
    "the label of Azure on Azure": Case(
        "rightSizing: {}",
        (slices(AKS, more={"accelerator": "nvidia"}),),
        ["cluster-autoscaler counts mig as idle, whatever slices pods hold, and as not ready"],
    ),
    "the label of Azure elsewhere": Case("rightSizing: {}", (slices(more={"accelerator": "nvidia"}),), []),
    "nodes of Karpenter": Case("rightSizing: {}", (slices(KARPENTER, more=LABEL),), []),
    "a policy without right-sizing": Case("limits: {perPod: []}", (slices(more=LABEL),), []),
    "machines without a maximum size": Case(
        GROW,
        (slices(), machines() | {"metadata": {"name": "a", "annotations": without_size(machines())}}),
        [f"node group a cannot grow: it has no annotation {MAX_SIZE} with a number"],
    ),
    "machines whose maximum size has more digits than a number": Case(
        GROW,
        (slices(), with_size("9" * 5000)),
        [f"node group a cannot grow: it has no annotation {MAX_SIZE} with a number"],
    ),
    "machines whose maximum size has digits of another script": Case(
        GROW, (slices(), with_size("٣")), [f"node group a cannot grow: it has no annotation {MAX_SIZE} with a number"]
    ),
    "settings without the product of the GPUs": Case(
        GROW,
        (slices(""), settings(agentLabels={})),
        [f"new node of slices would have {SMALL} of unknown memory"],
    ),
    "settings without the driver, beside nodes with a known one": Case(
        GROW,
        (whole_node(), slices(""), settings(agentLabels=labels_without("cuda.driver"))),
        ["new node of slices would have slices or shares, and an unknown driver"],
    ),
    "settings without the driver, and no node with whole GPUs": Case(
        GROW, (slices(""), settings(agentLabels=labels_without("cuda.driver"))), []
    ),
    "a policy that keeps whole GPUs, and slices only in a group without nodes": Case(
        "rightSizing: {}",
        (whole_node(), settings()),
        [f"policy test keeps whole GPUs, although new node of slices would have {SMALL}"],
    ),
    "a policy for which the slices of a group save too little": Case(
        "rightSizing: {minSavingPercent: 95}", (whole_node(), settings()), []
    ),
    "a policy that keeps whole GPUs, and slices in a group and on a node": Case(
        "rightSizing: {}", (slices(""), settings()), []
    ),
    "a taint of new nodes that nothing tolerates": Case(
        GROW,
        (settings(taints=[GPU_TAINT]),),
        ["new node of slices has the taint nvidia.com/gpu=present:NoSchedule, which no policy tolerates"],
    ),
    "a taint of new nodes that a policy tolerates": Case(
        f"{GROW}\ninjection: {{tolerations: auto}}", (settings(taints=[GPU_TAINT]),), []
    ),
    "a taint of new nodes for a team": Case(
        f"{GROW}\ninjection: {{tolerations: auto}}",
        (settings(taints=[TEAM_TAINT]),),
        ["new node of slices has the taint team=a:NoSchedule, which no policy tolerates"],
    ),
    "a taint of new nodes that a list has": Case(
        f"{GROW}\ninjection: {{tolerations: [{{key: team, operator: Exists}}]}}", (settings(taints=[TEAM_TAINT]),), []
    ),
    "machines that are paused": Case(
        GROW,
        (slices(), paused_machines() | {"spec": {"replicas": 0}}),
        ["node group slices cannot grow: it is paused", NONE_GROWS],
    ),
    "machines at their maximum, with the only slices of the cluster": Case(
        GROW,
        (whole_node(), machines() | {"spec": {"replicas": 3}}),
        ["node group slices cannot grow: it has its maximum of 3 nodes", NONE_GROWS],
    ),
    "a ready sibling without GPUs": Case(
        GROW, (slices(), make_node("cpu", {EKS: "slices"})), [f"node group slices cannot grow for {SMALL}", NONE_GROWS]
    ),
    "a NodeOverlay that is not ready": Case(
        GROW,
        (slices(KARPENTER), overlay() | {"status": UNREADY}),
        [f"node group slices cannot grow for {SMALL}", NONE_GROWS],
    ),
    "a NodePool that is not ready": Case(
        GROW,
        (slices(KARPENTER), overlay(), pool() | {"status": UNREADY}),
        ["node group slices cannot grow: its NodePool is not ready", NONE_GROWS],
    ),
    "a group that the settings stop": Case(GROW, (slices(), settings(grows=False)), [NONE_GROWS]),
    "accounting that new nodes lack": Case(
        "limits: {accounting: native}",
        (slices(),),
        [f"policy test lets pods request {MILLI}, which new nodes of slices lack"],
    ),
    "accounting that all nodes advertise": Case(
        "limits: {accounting: native}", (make_node("a", MIXED | {EKS: "a"}, **{SMALL: 7, MILLI: 7000}),), []
    ),
}


def problems(case: Case) -> list[GroupProblem]:
    """Return what is found."""
    return list(find_group_problems(policies_of(policy(case.policy)).policies, view_of(*case.objects)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_groups_that_cannot_grow_are_problems(case: Case) -> None:
    assert [found.summary for found in problems(case)] == case.want


def test_a_taint_is_one_problem_for_any_number_of_policies() -> None:
    policies = policies_of(policy(GROW, "a"), policy(GROW, "b")).policies

    found = list(find_group_problems(policies, view_of(settings(taints=[TEAM_TAINT]))))

    assert [each.summary for each in found] == [
        "new node of slices has the taint team=a:NoSchedule, which no policy tolerates"
    ]


def test_every_problem_says_what_to_do() -> None:
    for case in CASES.values():
        for problem in problems(case):
            assert len(problem.advice) > 40
            assert not problem.advice.endswith(".")


def test_a_node_pool_without_nodes_is_named() -> None:
    [problem] = problems(Case(GROW, (whole_node(), pool(), overlay()), [NONE_GROWS]))
    assert problem.advice.endswith("without nodes it is not known what NodePool slices offers")
