"""layout: the plan for clusters in files, and messages for invalid input."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.builders import PodMaker, make_node, make_pod
from tests.cli.conftest import JUNE, CommandResult, Run
from webhook.cli.audit_inputs import run_audit
from webhook.report.layout import NO_CARD

H100 = "NVIDIA-H100-80GB-HBM3"
POLICY: dict[str, Any] = {
    "apiVersion": "rightslice.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "smaller"},
    "spec": {"mode": "enforce", "rightSizing": {"isolation": "hardware", "evidence": ["declared"]}},
}


@pytest.fixture
def planned(rightslice: Run, tmp_path: Path) -> Any:
    """Return the plan for some pods on nodes with eight H100 each."""

    def plan(nodes: list[dict[str, Any]], pods: list[PodMaker], *arguments: str) -> Any:
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(POLICY))
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([*nodes, *(pod.build() for pod in pods)]))
        files = ["--cluster", str(tmp_path / "cluster.yaml"), "--policies", str(tmp_path / "policy.yaml")]
        result = rightslice("layout", *files, "--now", JUNE, *(arguments or ("-o", "json")))
        assert result.code == 0, result.err
        return result.out if arguments else orjson.loads(result.out)

    return plan


def hopper(name: str, **gpus: int) -> dict[str, Any]:
    """Return a node with H100 cards."""
    labels = {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.memory": "81559"}
    return make_node(name, labels, **(gpus or {"nvidia.com/gpu": 8}))


def running(name: str, need: str, node: str) -> PodMaker:
    """Return a pod that holds one whole card and declares its need."""
    return make_pod(name).gpus(1).needs(need).spec(nodeName=node)


def test_ten_small_pods_on_whole_cards_need_two_cards(planned: Any) -> None:
    found = planned([hopper("a"), hopper("b")], [running(f"p{i}", "8Gi", "ab"[i % 2]) for i in range(10)])

    assert found["cardsUsed"] == {"today": 10, "planned": 2, "lowerBound": 2}
    assert (found["optimal"], found["unserved"]["requests"], found["freed"]["gpus"]) == (True, 0, 8)
    assert [(row["requests"], row["origin"], row["unserved"]) for row in found["demand"]] == [(10, "right-sized", 0)]
    [node] = found["nodes"]
    assert sum(sum(layout.values()) for layout in node["planned"]) >= 10


def test_requests_without_cards_are_reported_with_the_reason(planned: Any) -> None:
    waiting = [make_pod(f"p{i}").requests("nvidia.com/mig-3g.40gb", "1") for i in range(3)]
    unknown = make_pod("q").requests("nvidia.com/mig-1g.5gb", "1")
    found = planned([hopper("a", **{"nvidia.com/gpu": 1})], [*waiting, unknown])

    assert {(row["requests"], row["unserved"], row["reason"]) for row in found["demand"]} == {
        (3, 1, "all cards that could serve it are used"),
        (1, 1, "no node that it may use can have the slices or shares that it requests"),
    }
    assert (found["waitingPods"], found["cardsUsed"]["today"], found["freed"]["gpus"]) == (4, 0, -1)


LOCAL_VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "disk"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"kind": "PersistentVolumeClaim", "name": "data", "namespace": "team", "uid": "u"},
        "local": {"path": "/data"},
        "nodeAffinity": {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}
                ]
            }
        },
    },
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "data",
        "namespace": "team",
        "uid": "u",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
    },
    "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}},
    "status": {"phase": "Bound"},
}


def test_a_waiting_pod_is_served_only_where_its_bound_volume_is(planned: Any) -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    pods = [make_pod("p").gpus(1).spec(volumes=[volume]), make_pod("q").gpus(1)]
    found = planned([hopper("a", **{"nvidia.com/gpu": 1}), hopper("b"), LOCAL_VOLUME, CLAIM], pods)

    assert [row["nodes"] for row in found["demand"]] == [["a"], None]


def cordoned(node: dict[str, Any]) -> dict[str, Any]:
    """Return a cordoned node."""
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return node | {"spec": {"unschedulable": True, "taints": [taint]}}


def unready(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node that is not ready."""
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    status = node["status"] | {"conditions": [{"type": "Ready", "status": "False"}]}
    return node | {"spec": {"taints": [taint]}, "status": status}


@pytest.mark.parametrize("unusable", [cordoned, unready])
def test_pods_that_can_only_wait_for_a_node_that_is_not_planned_are_counted_apart(planned: Any, unusable: Any) -> None:
    pod = make_pod("p").gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "b"})
    found = planned([hopper("a"), unusable(hopper("b"))], [pod])

    assert (found["podsElsewhere"], found["waitingPods"], found["demand"]) == (1, 0, [])


WAITING: dict[str, tuple[list[PodMaker], list[str], int]] = {
    "all served": ([make_pod(f"p{i}").gpus(1) for i in range(8)], [], 0),
    "two pods of several GPUs, one is served": ([make_pod(f"p{i}").gpus(6) for i in range(2)], [], 1),
    "pods that no node can serve": ([make_pod(f"p{i}").gpus(1).needs("100Gi") for i in range(3)], [], 3),
    "running pods are served first": (
        [*(running(f"r{i}", "30Gi", "a") for i in range(4)), *(make_pod(f"p{i}").gpus(1) for i in range(7))],
        [],
        1,
    ),
    "only the headroom is not served": ([make_pod(f"p{i}").gpus(1) for i in range(8)], ["--headroom", "20"], 0),
}


@pytest.mark.parametrize(("pods", "flags", "unserved"), WAITING.values(), ids=WAITING.keys())
def test_waiting_pods_that_the_plan_serves_are_counted(
    planned: Any, pods: list[PodMaker], flags: list[str], unserved: int
) -> None:
    found = orjson.loads(planned([hopper("a")], pods, "-o", "json", *flags))
    waiting = found["waitingPods"]
    line = f"Waiting pods{{}} {waiting}: the plan serves {waiting - unserved} of them, which use no cards today"

    assert found["waitingPodsUnserved"] == unserved
    assert line.format(" " * 10) in planned([hopper("a")], pods, "-o", "table", *flags)
    assert line.format(":") in planned([hopper("a")], pods, "-o", "html", *flags)


def test_a_pod_of_two_gpus_needs_two_units(planned: Any) -> None:
    lines = planned([hopper("a")], [make_pod("p").gpus(2), make_pod("q").gpus(16)], "-o", "table").splitlines()

    assert "Unserved               16 of 16 units: slices, shares and whole cards" in lines
    assert [line.split()[:2] for line in lines if line.startswith(("UNITS", "16 "))] == [
        ["UNITS", "ORIGIN"],
        ["16", "whole"],
    ]


PRICES = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPriceList
metadata: {name: ours}
currency: USD
asOf: "2026-06-01"
source: our contract
prices: [{product: NVIDIA-H100-80GB-HBM3, perHour: "4.00"}, {product: NVIDIA-A30, perHour: "1.00"}]
"""


def test_the_steps_free_what_the_products_free(planned: Any, tmp_path: Path) -> None:
    a30 = make_node(
        "a30", {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576"}, **{"nvidia.com/gpu": 4}
    )
    pods = [
        *(running(f"p{i}", "8Gi", "a") for i in range(7)),
        *(running(f"q{i}", "5Gi", "a30") for i in range(4)),
        *(make_pod(f"w{i}").gpus(1) for i in range(3)),
    ]
    (tmp_path / "prices.yaml").write_text(PRICES)
    for flags in ([], ["--prices", str(tmp_path / "prices.yaml")]):
        found = orjson.loads(planned([hopper("a"), a30], pods, "-o", "json", *flags))

        assert sum(row["freed"] for row in found["products"]) == sum(row["freed"] for row in found["steps"])
        assert {row["product"]: row["freedMicroPerHour"] is None for row in found["products"]}[H100] is False
        priced = [sum(row["freedMicroPerHour"] or 0 for row in found[table]) for table in ("products", "steps")]
        assert priced[0] == priced[1] == found["freed"]["microPerHour"]


def test_the_summary_has_the_price_of_the_tables_where_one_product_has_none(planned: Any) -> None:
    """As many cards of H100 are freed as of A100 are used, beside A30, which have no price."""
    a100 = make_node(
        "a100", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"},
        **{"nvidia.com/gpu": 1},
    )  # fmt: skip
    a30 = make_node(
        "a30", {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576"}, **{"nvidia.com/gpu": 1}
    )
    waiting = [
        make_pod(f"w{name}").gpus(1).spec(nodeSelector={"kubernetes.io/hostname": name}) for name in ("a100", "a30")
    ]
    pods = [*(running(f"p{i}", "30Gi", "a") for i in range(2)), *waiting]
    text = planned([hopper("a"), a100, a30], pods, "-o", "table")

    assert re.search(r"today: 1 card more, costs 0\.2\d USD/h more, 1 card without price\n", text), text


def test_nodes_keep_their_layouts_if_budgets_may_not_be_listed(
    rightslice: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_without_budgets(*arguments: Any) -> Any:
        audit = run_audit(*arguments)
        audit.drain_limits = None
        return audit

    monkeypatch.setattr("webhook.cli.commands.layout.run_audit", run_without_budgets)
    ran = rightslice("layout", "--cluster", "demo", "--no-color")
    plan = orjson.loads(rightslice("layout", "--cluster", "demo", "-o", "json").out)

    assert "warning: PodDisruptionBudgets: listing them in all namespaces is not permitted." in ran.err
    assert "PodDisruptionBudgets may not be listed, and might allow no eviction" in ran.out
    assert [node["node"] for node in plan["nodes"] if node["pods"]] == []
    assert plan["notDrained"]
    assert set(plan["notDrained"].values()) == {None}


def test_the_page_draws_the_cards_and_says_which_nodes_are_not_planned(planned: Any) -> None:
    cordoned = hopper("cordoned")
    cordoned["spec"]["unschedulable"] = True
    sharing = {
        "nvidia.com/gpu.product": f"{H100}-SHARED",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.memory": "81559",
    }
    shared = make_node("shared", sharing, **{"nvidia.com/gpu": 32})
    other = make_node(
        "other", {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}, **{"nvidia.com/gpu": 2}
    )
    media = hopper("media", **{"nvidia.com/mig-1g.10gb.me": 1})
    pods = [running(f"p{i}", "8Gi", "a") for i in range(7)]
    page = planned([hopper("a"), cordoned, shared, other, media], pods, "-o", "html")

    assert "<title>MIG layouts of " in page
    assert 'aria-label="7 x 1g.10gb"' in page
    assert 'aria-label="card, shared by 4"' in page
    found = re.findall(r'<span class="name">(\w+)</span><span class="faint">; (.*?)</span>', page)
    assert dict(found) == {
        "a": "7 pods with GPUs, to be drained",
        "cordoned": "cordoned",
        "shared": "GPUs are shared",
        "other": "the product has no known MIG profiles",
        "media": "advertises nvidia.com/mig-1g.10gb.me: no profile of the product, or with media engines",
    }


def resource_quota(name: str, **hard: int) -> dict[str, Any]:
    """Return a ResourceQuota of namespace team; `mig` is the slice of 3g.40gb."""
    names = {"gpu": "nvidia.com/gpu", "mig": "nvidia.com/mig-3g.40gb", "milli": "rightslice.dev/gpu-milli"}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"hard": {f"requests.{names[key]}": str(count) for key, count in hard.items()}},
    }


SLICES_WAIT = [make_pod(f"p{i}").requests("nvidia.com/mig-3g.40gb", "1") for i in range(3)]
QUOTAS: dict[str, tuple[list[dict[str, Any]], list[PodMaker], int, str]] = {
    "more slices than a quota admits": (
        [resource_quota("gpus", mig=2)],
        SLICES_WAIT,
        1,
        "ResourceQuota team/gpus admits 2 of nvidia.com/mig-3g.40gb for these pods",
    ),
    "one that admits enough": ([resource_quota("gpus", mig=3)], SLICES_WAIT, 0, ""),
    "of two quotas the smaller one": (
        [resource_quota("most", mig=2), resource_quota("fewest", mig=1)],
        SLICES_WAIT,
        2,
        "ResourceQuota team/fewest admits 1 of nvidia.com/mig-3g.40gb for these pods",
    ),
    "pods of another namespace are not counted": (
        [resource_quota("gpus", mig=0)],
        [make_pod("p").namespace("other").requests("nvidia.com/mig-3g.40gb", "1")],
        0,
        "",
    ),
    "a right-sized pod gets a whole card if no more slices are admitted": (
        [resource_quota("gpus", mig=1, gpu=2)],
        [running(f"p{i}", "30Gi", "a") for i in range(2)],
        0,
        "",
    ),
    "nor more whole cards": (
        [resource_quota("gpus", mig=1, gpu=0)],
        [running(f"p{i}", "30Gi", "a") for i in range(2)],
        1,
        "ResourceQuota team/gpus admits 0 of nvidia.com/gpu, 1 of nvidia.com/mig-3g.40gb for these pods",
    ),
    "cards that pods keep are charged first": (
        [resource_quota("gpus", gpu=2)],
        [running("kept", "70Gi", "a"), make_pod("p").gpus(1), make_pod("q").gpus(1)],
        1,
        "ResourceQuota team/gpus admits 1 of nvidia.com/gpu for these pods",
    ),
    "no slices that would escape the quota of whole cards": (
        [resource_quota("gpus", gpu=9)],
        [running(f"p{i}", "30Gi", "a") for i in range(2)],
        0,
        "",
    ),
}


@pytest.mark.parametrize(("quotas", "pods", "unserved", "reason"), QUOTAS.values(), ids=QUOTAS.keys())
def test_quotas_restrict_what_a_plan_serves(
    planned: Any, quotas: list[dict[str, Any]], pods: list[PodMaker], unserved: int, reason: str
) -> None:
    found = planned([hopper("a"), *quotas], pods)

    assert found["unserved"] == {"requests": unserved, "lowerBound": unserved}
    assert [row["reason"] for row in found["demand"] if row["unserved"]] == ([reason] if reason else [])
    served = Counter(
        (unit["profile"], row["quotas"] is not None) for row in found["demand"] for unit in row["served"]
        for _ in range(unit["requests"])
    )  # fmt: skip
    for quota in quotas:
        most = int(quota["spec"]["hard"].get("requests.nvidia.com/mig-3g.40gb", 9))
        assert served["3g.40gb", True] <= most


ACCOUNTED = {"match": {"objectSelector": {"matchLabels": {"accounted": "yes"}}}, "limits": {"accounting": "native"}}
"""Parts of a policy that accounts for the pods with a label."""


def test_a_quota_on_accounting_is_charged_only_for_pods_with_accounting(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICY, "spec", {"mode": "enforce", **ACCOUNTED})
    pods = [make_pod("accounted").gpus(1).label("accounted", "yes"), *(make_pod(f"p{i}").gpus(1) for i in range(3))]
    found = planned([hopper("a"), resource_quota("q", gpu=10, milli=1000)], pods)

    assert (found["waitingPods"], found["unserved"]["requests"]) == (4, 0)
    assert {tuple(row["quotas"]) for row in found["demand"]} == {("ResourceQuota team/q",)}


@pytest.mark.parametrize(("accounted", "unserved"), [(True, 0), (False, 1)])
def test_a_pod_releases_only_the_accounting_that_it_requests(
    planned: Any, monkeypatch: pytest.MonkeyPatch, accounted: bool, unserved: int
) -> None:
    monkeypatch.setitem(POLICY, "spec", {**POLICY["spec"], "limits": {"accounting": "native"}})
    quota = resource_quota("q", milli=1000)
    quota["status"] = {"hard": quota["spec"]["hard"], "used": quota["spec"]["hard"]}
    pod = running("p", "30Gi", "a") if accounted else make_pod("p").gpus(1)
    found = planned([hopper("a"), quota], [pod.requests("rightslice.dev/gpu-milli", "1k") if accounted else pod])

    assert found["unserved"]["requests"] == unserved


def test_shared_quotas_of_policies_restrict_what_a_plan_serves(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod on a node that is not planned has a seventh of a card, which leaves two half ones."""
    shared = [{"name": "all", "gpuMilli": 1200, "product": "NVIDIA-H100-*"}]
    monkeypatch.setitem(POLICY, "spec", {**POLICY["spec"], "quotas": {"shared": shared}})
    other = make_pod("other").namespace("other").requests("nvidia.com/mig-1g.10gb", "1").spec(nodeName="single")
    single = make_node("single", {"nvidia.com/gpu.product": H100}, **{"nvidia.com/mig-1g.10gb": 1})
    nodes, pods = [hopper("a"), single | {"spec": {"unschedulable": True}}], [SLICES_WAIT[0], other]
    [row] = orjson.loads(planned(nodes, pods, "--headroom", "200", "-o", "json"))["demand"]

    assert (row["requests"], row["unserved"]) == (3, 1)
    assert row["reason"] == "quota all of policy smaller admits 1.057 GPUs for these pods"


def test_pods_that_request_more_cpu_than_their_nodes_have_are_reported(planned: Any) -> None:
    """Seven pods fit on one card of a node with 64 CPUs."""
    pods = [running(f"p{i}", "8Gi", "a").requests("cpu", "16").requests("memory", "1Gi") for i in range(7)]
    found = planned([hopper("a")], pods)
    few = planned([hopper("a")], [running(f"p{i}", "8Gi", "a").requests("cpu", "8") for i in range(7)])

    assert found["hostShortages"] == [
        {"product": H100, "resource": "CPU", "nodes": 1, "requested": 112.0, "available": 64.0}
    ]
    assert few["hostShortages"] == []
    text = planned([hopper("a")], pods, "-o", "table")
    line = f"pods on 1 node with {H100} request 112 CPUs, and these have 64: some may wait"
    assert f"Too little CPU         {line}\n" in text


def test_waiting_pods_do_not_reduce_the_demand_of_each_other(planned: Any) -> None:
    more_than_pods_of_a_node = 120
    nodes = [hopper(f"n{i}") for i in range(more_than_pods_of_a_node // 8)]
    found = planned(nodes, [make_pod(f"p{i}").gpus(1).needs("8Gi") for i in range(more_than_pods_of_a_node)])

    assert [(row["requests"], row["origin"]) for row in found["demand"]] == [(more_than_pods_of_a_node, "right-sized")]


def test_cards_that_must_stay_whole_are_not_partitioned(planned: Any) -> None:
    pods = [make_pod("big").gpus(4).spec(nodeName="a"), *(running(f"p{i}", "8Gi", "a") for i in range(4))]
    found = planned([hopper("a")], pods)

    assert found["keptWhole"] == {"MultipleGPUs": 4}
    assert found["cardsUsed"] == {"today": 8, "planned": 5, "lowerBound": 5}


def test_a_waiting_pod_of_several_gpus_takes_no_card_if_too_few_are_left(planned: Any) -> None:
    waiting = [make_pod("big").gpus(6), *(make_pod(f"q{i}").gpus(1).needs("70Gi") for i in range(4))]
    found = planned([hopper("a")], [*(running(f"p{i}", "30Gi", "a") for i in range(8)), *waiting])

    rows = [(row["requests"], row["together"], row["unserved"], row["reason"]) for row in found["demand"]]
    assert rows == [
        (8, 1, 0, ""),
        (6, 6, 6, "too few suitable cards are left for all GPUs of the pod together"),
        (4, 1, 0, ""),
    ]


def test_what_can_change_without_drains_is_said(planned: Any) -> None:
    pods = [running(f"p{i}", "8Gi", "a") for i in range(7)]
    document = orjson.loads(planned([hopper("a")], pods, "-o", "json"))
    text = planned([hopper("a")], pods, "-o", "table")

    assert document["withoutDrains"] == {"cardsUsed": 7, "cardsChanged": 0, "unserved": 0, "nodes": []}
    assert "Without drains         no layout changes\n" in text


def test_a_plan_of_idle_nodes_has_no_other_without_drains(planned: Any) -> None:
    pods = [make_pod(f"p{i}").gpus(1).needs("8Gi") for i in range(7)]

    assert orjson.loads(planned([hopper("a")], pods, "-o", "json"))["withoutDrains"] is None


def test_used_and_freed_cards_are_listed_by_product(planned: Any) -> None:
    a30 = make_node(
        "a30", {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576"}, **{"nvidia.com/gpu": 4}
    )
    pods = [
        *(running(f"p{i}", "8Gi", "a") for i in range(7)),
        make_pod("w").gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A30"}),
    ]
    found = planned([hopper("a"), a30], pods)

    assert [
        [row[key] for key in ("product", "cards", "usedToday", "usedPlanned", "freed")] for row in found["products"]
    ] == [
        [H100, 8, 7, 1, 6],
        ["NVIDIA-A30", 4, 0, 1, -1],
    ]
    assert [row["freedMicroPerHour"] for row in found["products"]] == [found["freed"]["microPerHour"], None]


def test_nodes_that_are_not_planned_are_named_with_the_reason(planned: Any) -> None:
    many, unlabeled = hopper("many", **{"nvidia.com/gpu": 5000}), make_node("unlabeled", {}, **{"nvidia.com/gpu": 4})
    without = make_node("without", {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.count": "8"})
    lines = planned([hopper("a"), many, unlabeled, without], [], "-o", "table").splitlines()

    assert [line for line in lines if line.startswith("Not planned")] == [
        "Not planned            1 node (without): advertises no GPUs",
        "Not planned            1 node (unlabeled): has no label nvidia.com/gpu.product",
        "Not planned            1 node (many): reports more GPUs than any node can have",
    ]


def test_nodes_that_cannot_be_as_they_advertise_are_not_planned(planned: Any) -> None:
    many, bogus = hopper("many", **{"nvidia.com/mig-1g.10gb": 15}), hopper("bogus")
    many["metadata"]["labels"]["nvidia.com/gpu.count"] = "2"
    bogus["status"]["allocatable"]["nvidia.com/mig-bogus"] = "7"
    found = planned([hopper("a"), many, bogus], [])

    assert found["nodesNotPlanned"] == [
        {"node": "many", "reason": "advertises the GPUs of 3 cards, and nvidia.com/gpu.count is 2"},
        {"node": "bogus", "reason": "advertises nvidia.com/mig-bogus, which is no MIG profile"},
    ]
    assert [row["cards"] for row in found["products"]] == [8]


def test_slices_of_another_product_or_of_the_single_strategy_are_named(planned: Any) -> None:
    single = hopper("single", **{"nvidia.com/gpu": 7})
    single["metadata"]["labels"] |= {
        "nvidia.com/gpu.product": f"{H100}-MIG-1g.10gb",
        "nvidia.com/mig.strategy": "single",
    }
    found = planned([hopper("a"), hopper("small", **{"nvidia.com/mig-1g.5gb": 7}), single], [])

    assert {each["node"]: each["reason"] for each in found["nodesNotPlanned"]} == {
        "small": "advertises nvidia.com/mig-1g.5gb: no profile of the product, or with media engines",
        "single": "slices have the name nvidia.com/gpu (single strategy)",
    }


def test_pods_that_request_unknown_gpus_are_named(planned: Any) -> None:
    offered = make_pod("p").requests("nvidia.com/mig-bogus", "1")
    unoffered, cpu = make_pod("q").requests("nvidia.com/gpumem", "1"), make_pod("r")
    node = hopper("a")
    node["status"]["allocatable"]["nvidia.com/mig-bogus"] = "7"

    assert planned([node], [offered, unoffered, cpu])["podsNotPlanned"] == ["team/p", "team/q"]


def test_a_node_that_is_twice_in_a_file_is_noted(planned: Any, rightslice: Run, tmp_path: Path) -> None:
    planned([hopper("a"), hopper("a", **{"nvidia.com/gpu": 4})], [])
    cluster = str(tmp_path / "cluster.yaml")

    result = rightslice("layout", "--cluster", cluster, "--policies", str(tmp_path / "policy.yaml"))

    assert re.search(rf"note: 1 duplicate node: the last copy of each is used: a \({cluster}:\d+:1\)", result.err)


NO_CLUSTERS = {
    "an empty file": ("", "must contain Kubernetes objects, found none. Save the output of kubectl get"),
    "no objects": ("a: 1", "must contain Kubernetes objects, found none. Save the output of kubectl get"),
    "an empty list": ("{apiVersion: v1, kind: List, items: []}", "must contain Kubernetes objects, found none"),
    "no nodes": (
        "{apiVersion: v1, kind: Namespace, metadata: {name: p}}",
        "no nodes here. Save the output",
    ),
}


@pytest.mark.parametrize(("text", "message"), NO_CLUSTERS.values(), ids=NO_CLUSTERS)
def test_a_file_without_a_cluster_is_an_error(rightslice: Run, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)

    result = rightslice("layout", "--cluster", str(tmp_path / "cluster.yaml"), "--policies", "policies")

    assert (result.code, result.out) == (2, "")
    assert f"error: {tmp_path}/cluster.yaml: {message}" in result.err


def test_whole_cards_of_waiting_pods_are_not_those_that_stay(planned: Any) -> None:
    pods = [make_pod("run").gpus(2).spec(nodeName="a"), make_pod("wait").gpus(4)]
    found, text = planned([hopper("a")], pods), planned([hopper("a")], pods, "--no-color")

    assert (found["keptWhole"], found["waitingWhole"]) == ({"MultipleGPUs": 2}, {"MultipleGPUs": 4})
    assert found["cardsUsed"]["planned"] == 6
    assert "Whole cards that stay  2 (2 MultipleGPUs), with running pods\n" in text
    assert "Wait for whole cards   4 (4 MultipleGPUs), for waiting pods\n" in text


def test_only_cards_with_mig_profiles_can_be_partitioned(rightslice: Run) -> None:
    page = rightslice("layout", "--cluster", "demo", "-o", "html").out

    assert "with 56 cards, 40 can be partitioned" in page  # the others are V100, L4 and L40S
    assert "NVIDIA-L4, shared" in page
    assert "NVIDIA-L4, partitioned" not in page


def test_the_steps_have_the_order_of_the_script(rightslice: Run, tmp_path: Path) -> None:
    arguments = ("-o", "json", "--write", str(tmp_path), "--allow-drain", "--max-unavailable", "3")
    plan = orjson.loads(rightslice("layout", "--cluster", "demo", *arguments).out)

    script = re.findall(r"^(?:reserve|drain) (\S+)", (tmp_path / "apply.sh").read_text(), re.MULTILINE)
    assert [name for step in plan["steps"] for name in step["nodes"]] == script
    pods = [node["pods"] for node in plan["nodes"]]
    assert pods == sorted(pods)


def test_a_demand_of_the_past_without_drains_says_why_more_cards_are_used(rightslice: Run) -> None:
    text = rightslice("layout", "--cluster", "demo", "--quantile", "0.95", "--headroom", "20", "--no-color").out

    assert "Without drains         no layout changes; the demand then uses 50 cards, 43 today; 5 more units" in text
    assert "Headroom               20% more units of each need, rounded up\n" in text


def test_each_change_says_what_it_frees(rightslice: Run) -> None:
    plan = orjson.loads(rightslice("layout", "--cluster", "demo", "--now", JUNE, "-o", "json").out)
    steps, freed = plan["steps"], plan["freed"]

    assert [each["nodes"] for each in steps] == [[], *([each["node"]] for each in plan["nodes"])]
    assert [each["pods"] for each in steps] == [0, *(each["pods"] for each in plan["nodes"])]
    assert sum(each["freed"] for each in steps) == freed["gpus"] == 12
    assert sum(each["freedMicroPerHour"] for each in steps) == freed["microPerHour"]
    assert (steps[0]["unserved"], steps[-1]["unserved"]) == (2, plan["unserved"]["requests"])


def test_equal_nodes_that_change_alike_are_one_step(planned: Any) -> None:
    pods = [make_pod(f"p{i}").requests("nvidia.com/mig-1g.10gb", "1") for i in range(14)]
    nodes = [hopper(name, **{"nvidia.com/gpu": 1}) for name in "ab"]

    assert [(each["nodes"], each["freed"], each["unserved"]) for each in planned(nodes, pods)["steps"]] == [
        ([], 0, 14),
        (["a", "b"], -2, 0),
    ]


def test_a_plan_for_today_says_what_share_of_the_recorded_demand_it_serves(rightslice: Run, planned: Any) -> None:
    demo = ("layout", "--cluster", "demo", "--now", JUNE)
    plan = orjson.loads(rightslice(*demo, "-o", "json").out)

    assert (plan["recorded"]["pods"], plan["record"]) == (323, None)
    assert 0.5 < plan["recorded"]["servedShare"] < 1
    assert "Recorded demand        the planned cards would serve 8" in rightslice(*demo, "--no-color").out
    assert orjson.loads(rightslice(*demo, "--quantile", "0.9", "-o", "json").out)["recorded"] is None
    assert planned([hopper("a")], [])["recorded"] is None


def test_a_plan_of_a_part_of_a_file_is_an_error(planned: Any, rightslice: Run, tmp_path: Path) -> None:
    planned([hopper("a")], [])
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"{cluster.read_text()}---\nkind: Node\nkind: Node\n")

    result = rightslice("layout", "--cluster", str(cluster), "--policies", str(tmp_path / "policy.yaml"))

    assert (result.code, result.out) == (2, "")
    assert f"error: {cluster}:" in result.err
    assert "must have each key once, found 'kind' again" in result.err


def test_headroom_plans_for_more_requests_of_each_need(planned: Any) -> None:
    pods = [*(running(f"p{i}", "8Gi", "a") for i in range(7)), running("q", "30Gi", "a")]
    found = planned([hopper("a")], pods, "-o", "json", "--headroom", "20")
    plan = orjson.loads(found)

    assert sorted(row["requests"] for row in plan["demand"]) == [2, 9]
    assert (plan["unserved"]["requests"], plan["cardsUsed"]["planned"]) == (0, 3)


def test_a_quantile_plans_for_the_recorded_time(rightslice: Run) -> None:
    result = rightslice("layout", "--cluster", "demo", "--now", JUNE, "--quantile", "0.95", "-o", "json")
    plan = orjson.loads(result.out)

    assert (plan["record"]["quantile"], plan["record"]["pods"]) == (0.95, 323)
    assert plan["record"]["start"] < plan["record"]["heldOut"]["start"] < plan["record"]["end"]
    assert plan["record"]["heldOut"]["servedShare"] >= 0.98 * plan["record"]["heldOut"]["earlierServedShare"]
    assert any(row["requests"] > row["now"] for row in plan["demand"])


def test_a_quantile_needs_a_record(rightslice: Run) -> None:
    result = rightslice("layout", "--cluster", "cluster.yaml", "--policies", "policies", "--quantile", "0.95")

    assert result.code == 2
    assert "--quantile: is a share of recorded time, found no recorded pods. Write --usage FILE" in result.err


@pytest.mark.parametrize("share", ["0", "nan"])
def test_a_quantile_is_above_0_and_at_most_1(rightslice: Run, share: str) -> None:
    result = rightslice("layout", "--cluster", "demo", "--quantile", share)

    assert result.code == 2
    assert f"--quantile: must be above 0 and at most 1, found {share}. Write --quantile 0.95" in result.err


def test_needs_of_each_namespace(planned: Any) -> None:
    pods = [*(running(f"p{i}", "8Gi", "a") for i in range(3)), running("q", "8Gi", "a").namespace("other")]
    plan = orjson.loads(planned([hopper("a")], pods, "-o", "json", "--by-namespace"))

    assert {(row["namespace"], row["requests"]) for row in plan["demand"]} == {("team", 3), ("other", 1)}
    assert plan["cardsUsed"]["planned"] == 1


def turing(name: str) -> dict[str, Any]:
    """Return a node with T4 cards, which cannot be partitioned."""
    return make_node(
        name, {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}, **{"nvidia.com/gpu": 4}
    )


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy allow time-slicing."""
    monkeypatch.setitem(
        POLICY["spec"], "rightSizing", {"isolation": "none", "forms": ["timeSlicing"], "evidence": ["declared"]}
    )


@pytest.mark.usefixtures("shares")
def test_pods_that_may_share_a_card_get_shares(planned: Any) -> None:
    pods = [make_pod(f"p{i}").gpus(1).needs("3Gi", "20%").spec(nodeName="ab"[i % 2]) for i in range(8)]
    found = planned([turing("a"), turing("b")], pods)

    assert found["cardsUsed"] == {"today": 8, "planned": 4, "lowerBound": 4}
    assert {tuple(row["layout"].items()): row["planned"] for row in found["layouts"]} == {
        (): 4,
        (("timeSlicing/5", 5),): 4,
    }
    [node] = found["nodes"]
    assert node["planned"] == [{"timeSlicing/5": 5}] * 4
    assert found["cardsChanged"] == 4


def test_of_equal_shares_those_with_a_memory_limit_are_planned(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"isolation": "none", "forms": ["mps", "timeSlicing"], "evidence": ["declared"]}
    monkeypatch.setitem(POLICY["spec"], "rightSizing", rules)
    pods = [make_pod(f"p{i}").gpus(1).needs("3Gi", "20%").spec(nodeName="ab"[i % 2]) for i in range(8)]
    found = planned([turing("a"), turing("b")], pods)

    assert [profile for row in found["layouts"] for profile in row["layout"]] == ["mps/5"]


@pytest.mark.usefixtures("shares")
def test_a_node_with_a_whole_card_that_stays_is_not_shared(planned: Any) -> None:
    pods = [make_pod(f"p{i}").gpus(1).needs("3Gi", "20%").spec(nodeName="a") for i in range(3)]
    found = planned([turing("a")], [*pods, make_pod("big").gpus(1).spec(nodeName="a")])

    assert (found["cardsUsed"]["planned"], found["nodes"]) == (4, [])


def budget(name: str, app: str, allowed: int | None = None, **spec: Any) -> PodMaker:
    """Return a PodDisruptionBudget of the pods of an app, as something to build."""
    status = {} if allowed is None else {"status": {"disruptionsAllowed": allowed}}
    selector = {"selector": {"matchLabels": {"app": app}}}
    item = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": selector | spec, **status}
    made = make_pod(name)
    made.build = lambda: item | {"metadata": {"namespace": "team", "name": name}}  # type: ignore[method-assign]  # the fixture builds only pods
    return made


FORBIDDING: dict[str, dict[str, Any]] = {
    "by its status": {"allowed": 0, "maxUnavailable": 1},
    "by its spec": {"maxUnavailable": 0},
    "that all pods are available": {"minAvailable": "100%"},
    "whose amount cannot be read": {"minAvailable": "x%"},
    "whose selector cannot be read": {"selector": {"matchLabels": {"app": 5}}},
}


@pytest.mark.parametrize("spec", FORBIDDING.values(), ids=FORBIDDING.keys())
def test_a_node_is_not_drained_if_a_disruption_budget_forbids_it(planned: Any, spec: dict[str, Any]) -> None:
    pods = [running(f"p{i}", "8Gi", "a").label("app", "a") for i in range(7)]
    assert planned([hopper("a")], pods)["nodes"] != []

    found = planned([hopper("a")], [*pods, budget("one", "a", **spec)])
    text = planned([hopper("a")], [*pods, budget("one", "a", **spec)], "--no-color")

    reason = "PodDisruptionBudget team/one allows no eviction"
    assert (found["nodes"], found["notDrained"]) == ([], {"a": reason})
    assert f"Not drained            1 node (a): {reason}\n" in text


UNDRAINED: dict[str, tuple[list[PodMaker], str]] = {
    "a pod of a DaemonSet": (
        [running("p", "8Gi", "a").owned_by("DaemonSet", "owner")],
        "a drain does not evict pods of DaemonSet team/owner, and one has GPUs",
    ),
    "a static pod": (
        [running("p", "8Gi", "a").annotate("kubernetes.io/config.mirror", "digest")],
        "a drain does not evict static pods, and one has GPUs",
    ),
    "a pod with two budgets": (
        [running("p", "8Gi", "a").label("app", "a"), budget("one", "a", 9), budget("two", "a", 9)],
        "a pod with several PodDisruptionBudgets (team/one, team/two) cannot be evicted",
    ),
}


@pytest.mark.parametrize(("pods", "reason"), UNDRAINED.values(), ids=UNDRAINED.keys())
def test_a_node_is_not_drained_if_a_drain_would_not_free_its_gpus(
    planned: Any, pods: list[PodMaker], reason: str
) -> None:
    found = planned([hopper("a")], [*pods, *(running(f"p{i}", "8Gi", "a") for i in range(3))])

    assert (found["nodes"], found["notDrained"]) == ([], {"a": reason})


DRAINS: dict[str, tuple[list[PodMaker], str]] = {
    "one whose budget forbids it is not": ([budget("one", "a", 0)], "b"),
    "one whose budget allows few evictions at once is not": ([budget("one", "b", 3)], "a"),
    "one whose budget allows all of them is": ([budget("one", "a", 3), budget("two", "b", 7)], "b"),
}


@pytest.mark.parametrize(("budgets", "expected"), DRAINS.values(), ids=DRAINS.keys())
def test_of_two_nodes_one_is_drained(planned: Any, budgets: list[PodMaker], expected: str) -> None:
    held = [running(f"{node}{i}", "8Gi", node).label("app", node) for node in "ab" for i in range(7)]
    found = planned([hopper("a"), hopper("b")], [*held, *budgets])

    assert ([node["node"] for node in found["nodes"]], found["cardsUsed"]["planned"]) == ([expected], 2)


def pool_node(name: str, pool: str) -> dict[str, Any]:
    """Return a node of a pool, by label and taint."""
    node = hopper(name)
    node["metadata"]["labels"] |= {"pool": pool, "kubernetes.io/hostname": name}
    node["spec"] = {"taints": [{"key": "pool", "value": pool, "effect": "NoSchedule"}]}
    return node


TOLERATIONS = [{"key": "pool", "operator": "Equal", "value": "b", "effect": "NoSchedule"}]
ANY_POOL = [{"key": "pool", "operator": "Exists"}]
TERM = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
REACHES: dict[str, dict[str, Any]] = {
    "by the name of the host": {"nodeSelector": {"kubernetes.io/hostname": "n2"}, "tolerations": ANY_POOL},
    "by a label of the pool": {"nodeSelector": {"pool": "b"}, "tolerations": ANY_POOL},
    "by required affinity": {"affinity": AFFINITY, "tolerations": ANY_POOL},
    "by the taint that it tolerates": {"tolerations": TOLERATIONS},
}


@pytest.mark.parametrize("spec", REACHES.values(), ids=REACHES.keys())
def test_the_node_is_partitioned_that_the_pods_may_use(planned: Any, spec: dict[str, Any]) -> None:
    pods = [make_pod(f"p{i}").requests("nvidia.com/mig-1g.10gb", "1").spec(**spec) for i in range(3)]
    found = planned([pool_node("n1", "a"), pool_node("n2", "b")], pods)

    assert ([node["node"] for node in found["nodes"]], found["unserved"]["requests"]) == (["n2"], 0)
    assert [row["nodes"] for row in found["demand"]] == [["n2"]]


def test_running_pods_count_for_the_nodes_that_they_may_use_when_they_are_created_again(planned: Any) -> None:
    spec = REACHES["by a label of the pool"]
    pods = [running(f"p{i}", "8Gi", "n2").spec(**spec) for i in range(7)]
    found = planned([pool_node("n1", "a"), pool_node("n2", "b")], pods)

    assert [node["node"] for node in found["nodes"]] == ["n2"]


def test_pods_whose_only_node_is_full_are_unserved_with_the_reason(planned: Any) -> None:
    full = make_pod("full").gpus(8).spec(nodeName="n2", tolerations=ANY_POOL)
    spec = REACHES["by the name of the host"]
    waiting = [make_pod(f"p{i}").requests("nvidia.com/mig-1g.10gb", "1").spec(**spec) for i in range(3)]
    nodes = [pool_node("n1", "a"), pool_node("n2", "b")]
    found = planned(nodes, [full, *waiting])

    assert found["nodes"] == []
    [row] = found["demand"]
    assert (row["unserved"], row["nodes"], row["reason"]) == (3, ["n2"], NO_CARD)
    assert "1g.10gb of NVIDIA-H100-80GB-HBM3 on n2 only" in planned(nodes, [full, *waiting], "--no-color")


def test_of_equal_nodes_the_one_that_is_shared_today_stays_shared(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap of the layouts of both would serve as much, and drain one of them."""
    rules = {"isolation": "none", "forms": ["mps", "timeSlicing"], "evidence": ["declared"]}
    monkeypatch.setitem(POLICY["spec"], "rightSizing", rules)
    product, memory = "NVIDIA-A100-SXM4-80GB", {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.count": "4"}
    sharing = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}
    labels = {"nvidia.com/gpu.product": f"{product}-SHARED", **sharing}
    n1 = make_node("n1", {**labels, **memory}, **{"nvidia.com/gpu.shared": 16})
    n2 = make_node("n2", {"nvidia.com/gpu.product": product, **memory}, **{"nvidia.com/gpu": 4})
    pods = [
        make_pod(f"p{i}").requests("nvidia.com/gpu.shared", "1").needs("15Gi", "20%").spec(nodeName="n1")
        for i in range(3)
    ]

    changed = {node["node"] for node in planned([n1, n2], pods)["nodes"]}
    assert "n2" not in changed


def test_shares_of_both_forms_serve_pods_whose_policy_allows_both(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is time-sliced today serves its pods as it is."""
    rules = {"isolation": "none", "forms": ["mps", "timeSlicing"], "evidence": ["declared"]}
    monkeypatch.setitem(POLICY["spec"], "rightSizing", rules)
    sharing = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    labels = {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", **sharing}
    node = make_node("t4", {**labels, "nvidia.com/gpu.count": "1"}, **{"nvidia.com/gpu.shared": 4})
    pods = [
        make_pod(f"p{i}").requests("nvidia.com/gpu.shared", "1").needs("3Gi", "20%").spec(nodeName="t4")
        for i in range(4)
    ]
    unknown = make_pod("q").requests("nvidia.com/gpu.shared", "1").spec(nodeName="t4")
    found, mixed = planned([node], pods), planned([node], [*pods[:3], unknown])

    for plan in (found, mixed):
        assert (plan["nodes"], plan["unserved"]["requests"], plan["cardsUsed"]["lowerBound"]) == ([], 0, 1)


@pytest.mark.usefixtures("shares")
def test_shares_are_not_planned_where_files_are_written(planned: Any, tmp_path: Path) -> None:
    pods = [make_pod(f"p{i}").gpus(1).needs("3Gi", "20%").spec(nodeName="a") for i in range(4)]
    planned([turing("a")], pods, "--no-color", "--write", str(tmp_path / "out"), "--allow-drain")

    assert not (tmp_path / "out" / "apply.sh").exists()


def test_a_request_that_only_busy_nodes_could_serve_says_so(planned: Any, tmp_path: Path) -> None:
    waiting = make_pod("w").requests("nvidia.com/mig-1g.10gb", "1")
    pods = [*(running(f"p{i}", "8Gi", "a") for i in range(8)), waiting]
    planned([hopper("a")], pods, "-o", f"json={tmp_path / 'plan.json'}", "--write", str(tmp_path / "out"))
    plan = orjson.loads((tmp_path / "plan.json").read_bytes())

    [reason] = [row["reason"] for row in plan["demand"] if row["unserved"]]
    assert reason.endswith("or on nodes with pods, which keep their layouts")


def test_a_plan_that_needs_more_cards_says_what_they_cost(planned: Any) -> None:
    waiting = [make_pod("p").requests("nvidia.com/mig-1g.10gb", "1")]

    assert "1 card more, costs 4.92 USD/h more" in planned([hopper("a")], waiting, "--no-color")


def test_the_summary_counts_nodes_and_requests(planned: Any) -> None:
    found = planned([hopper("a")], [running("p", "8Gi", "a"), running("q", "8Gi", "a")], "--no-color")
    single = planned([hopper("a")], [running("p", "8Gi", "a")], "--no-color")

    assert "1 card on 1 node; 1 node must be drained\n" in found
    assert "0 of 2 units: slices, shares and whole cards\n" in found
    assert "0 of 1 unit: slices, shares and whole cards\n" in single


def test_a_cluster_without_cards_to_partition(planned: Any) -> None:
    node = make_node("t4", {"nvidia.com/gpu.product": "Tesla-T4"}, **{"nvidia.com/gpu": 4})
    cordoned = [hopper(f"c{i}") for i in range(2)]
    for each in cordoned:
        each["spec"]["unschedulable"] = True

    assert planned([node, *cordoned], [running("p", "8Gi", "c0")], "--no-color").splitlines() == [
        "No node has cards whose layouts can be planned.",
        "Not planned            2 nodes (c0, c1): cordoned",
        "Not planned            1 node (t4): the product has no known MIG profiles",
        "Not planned            1 pod with GPUs on nodes that are not planned, or waiting for such nodes",
    ]


def busy_and_idle() -> tuple[list[dict[str, Any]], list[PodMaker]]:
    """Return a node with small pods on whole cards, an idle one, and three small pods that wait."""
    waiting = [make_pod(f"w{i}").requests("nvidia.com/mig-1g.10gb", "1") for i in range(3)]
    return [hopper("busy"), hopper("idle")], [*(running(f"p{i}", "8Gi", "busy") for i in range(8)), *waiting]


def test_written_files_change_idle_nodes_only(planned: Any, tmp_path: Path) -> None:
    found = planned(*busy_and_idle(), "-o", f"json={tmp_path / 'plan.json'}", "--write", str(tmp_path / "out"))
    plan = orjson.loads((tmp_path / "plan.json").read_bytes())
    steps = (tmp_path / "out" / "apply.sh").read_text().partition("cluster-policy --type merge")[2]

    assert found == ""
    assert [node["node"] for node in plan["nodes"]] == ["idle"]
    assert "reserve idle rightslice-" in steps
    assert "busy" not in steps
    assert "drain" not in steps
    assert plan["cardsUsed"] == {"today": 8, "planned": 2, "lowerBound": 2}


def test_written_files_drain_nodes_where_that_is_allowed(planned: Any, tmp_path: Path) -> None:
    nodes, pods = busy_and_idle()
    planned(nodes[:1], pods, "--no-color", "--write", str(tmp_path / "out"), "--allow-drain")

    assert "drain busy rightslice-" in (tmp_path / "out" / "apply.sh").read_text()


TAINT = {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}}
AUDITED = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: audited, labels: {owner: platform}, resourceVersion: "7"}
spec:
  match: {namespaces: [research]}
  rightSizing: {evidence: [declared], risk: "0.1%", default: {memory: 8Gi}}
  injection: {tolerations: auto}
  limits: {perPod: [{resource: nvidia.com/gpu, max: 8}]}
---
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: unused}
spec: {match: {namespaces: [nobody]}, rightSizing: {}}
"""


def test_written_policies_right_size_the_planned_pods_and_no_others(rightslice: Run, tmp_path: Path) -> None:
    planned = [make_pod(f"p{i}").namespace("research").gpus(1).needs("8Gi") for i in range(5)]
    others = [make_pod("q").namespace("research").gpus(1).needs("70Gi"), make_pod("r").gpus(1).needs("8Gi")]
    pods = [each.build() for each in (*planned, *others)]
    policies, written = tmp_path / "audited.yaml", tmp_path / "out" / "policies.yaml"
    policies.write_text(AUDITED)

    def run(command: str, policies: Path, *arguments: str, **gpus: int) -> CommandResult:
        node = {**hopper("a", **gpus), **TAINT}
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([node, *pods]))
        files = ("--cluster", str(tmp_path / "cluster.yaml"), "--policies", str(policies))
        return rightslice(command, *files, "--now", JUNE, *arguments)

    first = run("layout", policies, "--write", str(tmp_path / "out"))
    assert "Not enforced           audited: pods keep whole cards until rightSizing.mode is enforce" in first.out
    assert rightslice("policy", "lint", str(written)).code == 0
    [policy] = yaml.safe_load_all(written.read_text())
    spec = yaml.safe_load(AUDITED.partition("---")[0])["spec"]
    assert policy["metadata"] == {"name": "audited", "labels": {"owner": "platform"}}
    assert policy["spec"] == spec | {name: spec[name] | {"mode": "enforce"} for name in ("rightSizing", "injection")}

    again = orjson.loads(run("layout", written, "-o", "json").out)
    [slices] = [row["layout"] for row in again["layouts"] if row["layout"]]
    resources = {f"nvidia.com/mig-{profile}": count for profile, count in slices.items()}
    after = orjson.loads(run("rightsize", written, "-o", "json", **{"nvidia.com/gpu": 7}, **resources).out)
    assert again["unenforcedPolicies"] == []
    sized = {row["workload"] for row in after["workloads"] if row["recommended"] in resources}
    assert sized == {f"Pod/p{i}" for i in range(5)}


def test_nothing_is_written_if_no_node_changes(planned: Any, rightslice: Run, tmp_path: Path) -> None:
    nodes, pods = busy_and_idle()
    planned(nodes[:1], pods)
    files = ("--cluster", str(tmp_path / "cluster.yaml"), "--policies", str(tmp_path / "policy.yaml"))
    result = rightslice("layout", *files, "--write", str(tmp_path / "out"))

    assert not (tmp_path / "out").exists()
    assert "note: no layout changes, as nodes with GPU pods keep their layouts without --allow-drain" in result.err


def test_files_of_an_earlier_plan_are_removed_and_those_of_others_stay(planned: Any, tmp_path: Path) -> None:
    nodes, pods = busy_and_idle()
    folder = tmp_path / "layout"
    flags = ("--no-color", "--write", str(folder))
    planned(nodes[:1], pods, *flags, "--allow-drain")
    assert "drain busy" in (folder / "apply.sh").read_text()
    (folder / "device-plugin-config.yaml").write_text("ours\n")

    planned(nodes[:1], pods, *flags)

    assert [each.name for each in folder.iterdir()] == ["device-plugin-config.yaml"]


def test_files_that_are_not_of_a_plan_are_not_overwritten(planned: Any, rightslice: Run, tmp_path: Path) -> None:
    nodes, pods = busy_and_idle()
    folder = tmp_path / "layout"
    folder.mkdir()
    (folder / "apply.sh").write_text("terraform apply\n")
    planned(nodes, pods)

    files = ("--cluster", str(tmp_path / "cluster.yaml"), "--policies", str(tmp_path / "policy.yaml"))
    result = rightslice("layout", *files, "--write", str(folder))

    must = "must be a file of layout --write, found another. Move it, or write to another folder"
    assert (result.code, result.err) == (2, f"error: {folder}/apply.sh: {must}\n")
    assert {each.name: each.read_text() for each in folder.iterdir()} == {"apply.sh": "terraform apply\n"}


def test_cards_that_are_shared_today_have_the_price_of_their_product(rightslice: Run) -> None:
    table = rightslice("layout", "--cluster", "demo", "--no-color").out
    assert "12 cards freed, 52.41 USD/h\n" in table  # 8 A100s of 5.121, 2 H100s of 4.916 and 2 L4s of 0.805


def test_cards_without_a_price_have_none(planned: Any) -> None:
    waiting = [make_pod("p").requests("nvidia.com/mig-1g.6gb", "1")]
    node = make_node("a30", {"nvidia.com/gpu.product": "NVIDIA-A30"}, **{"nvidia.com/gpu": 1})

    assert "1 card more, no price" in planned([node], waiting, "--no-color")


BAD_WRITES = {
    "drains without files": (["--allow-drain"], "apply to the files of --write. Write --write DIR"),
    "a number of nodes without files": (["--max-unavailable", "3"], "apply to the files of --write"),
    "no node at once": (["--max-unavailable", "0", "--write", "out"], "error: --max-unavailable: must be"),
    "an empty name": (["--write", ""], "--write: must name a folder, found ''. Write --write layout"),
    "a folder that is a file": (["--write", "cluster.yaml", "--allow-drain"], "cluster.yaml: cannot be written"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_WRITES.values(), ids=BAD_WRITES.keys())
def test_invalid_flags_of_written_files(rightslice: Run, arguments: list[str], message: str) -> None:
    result = rightslice("layout", "--cluster", "cluster.yaml", "--policies", "policies", *arguments)

    assert result.code == 2
    assert message in result.err


def test_a_missing_solver_is_named(rightslice: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)

    result = rightslice("layout", "--cluster", "cluster.yaml", "--policies", "policies")

    assert result.code == 2
    assert "layout: needs HiGHS, which is not installed. Write pip install 'highspy" in result.err


def test_the_status_needs_a_folder_with_a_plan(rightslice: Run, tmp_path: Path) -> None:
    absent = rightslice("layout", "status", str(tmp_path))
    (tmp_path / "apply.sh").write_text("#!/bin/sh\n")
    other = rightslice("layout", "status", str(tmp_path))
    empty = rightslice("layout", "status", "")

    assert (absent.code, other.code, empty.code) == (2, 2, 2)
    assert "DIR: must name a folder, found ''" in empty.err
    assert "apply.sh: cannot be read: No such file or directory" in absent.err
    assert "apply.sh: must be a script of layout --write that changes nodes. Write it again" in other.err
