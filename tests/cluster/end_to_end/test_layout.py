"""A cut of the openb trace on nodes with whole cards, and on the same nodes with the layouts that are planned for it.

RIGHTSLICE_LAYOUT_TRACE=LIST:NODESxPODS sets the list and the size. Each node has eight H200. A pod requests a whole
GPU, and declares its share of one as its need. Pods with several GPUs are left out, and so are CPU and memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from benchmarks.openb import traces
from tests.builders import make_node, make_pod
from tests.cluster.client import Json
from tests.cluster.installation import POLICIES, Installation
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.conftest import ROOT
from webhook.model.gpu_resources import CARD_MILLI
from webhook.model.mig_catalog import mig_profile_spec
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.placement.capacity import PodDemand
from webhook.placement.layout_plan import CardUnit

LIST, _, SIZE = os.environ.get("RIGHTSLICE_LAYOUT_TRACE", "gpushare60:2x40").partition(":")
NODES, PODS = map(int, SIZE.split("x"))
CARDS = 8
PRODUCT = "NVIDIA-H200"
"""No node of the example cluster has it."""
WHOLE_GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-"
UNASSIGNED = 1
"""Free slices of each profile that this installation does not assign, since another replica may assign them unseen."""
TRACE = ROOT.parent / "shared" / "traces" / "openb"


def trace_pods() -> list[PodDemand]:
    """Return the first pods of the list that request at most one GPU; of a small made list without the trace."""
    lists = traces(TRACE if TRACE.is_dir() else None).lists
    pods = lists.get(LIST) or lists["made"]
    return [pod for pod in pods if pod.gpus == 1][:PODS]


def trace_pod(name: str, team: str, demand: PodDemand) -> Json:
    """Return a pod that requests a whole GPU, and declares its share as its need."""
    pod = make_pod(name).namespace(team).gpus(1).spec(nodeSelector={PRODUCT_LABEL: PRODUCT})
    if demand.gpu_milli < CARD_MILLI:
        card = mig_profile_spec(PRODUCT, "7g.141gb")
        assert card is not None
        pod = pod.needs(f"{demand.gpu_milli * card.memory_mib // CARD_MILLI}Mi", f"{demand.gpu_milli / 10:g}%")
    return pod.build()


def trace_node(name: str, layouts: Sequence[dict[str, int]]) -> Json:
    """Return a node whose cards have these layouts; {} for a whole card."""
    gpus = Counter({WHOLE_GPU: layouts.count({})})
    for layout in layouts:
        gpus.update({f"{MIG}{profile}": count for profile, count in layout.items()})
    labels = {PRODUCT_LABEL: PRODUCT, "nvidia.com/gpu.memory": "143771"}
    return make_node(name, labels | {"nvidia.com/mig.strategy": "mixed"}, **gpus)


def most_equal_slices(layouts: Sequence[dict[str, int]]) -> int:
    """Return the number of slices of a node's most frequent profile."""
    totals = sum(map(Counter, layouts), Counter[str]())
    return max(totals.values(), default=0)


def plan_layouts(site: Installation) -> Json:
    """Return the plan for the pods of the cluster."""
    cluster = ["--cluster", "live", "--kubeconfig", str(site.plane.kubeconfig), "--policies", str(POLICIES)]
    command = [sys.executable, "-m", "webhook.cli", "layout", *cluster, "--by-namespace", "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    plan: Json = json.loads(done.stdout)
    return plan


def is_settled(pod: Json) -> bool:
    """Return whether the scheduler has decided about a pod."""
    reasons = [each.get("reason") for each in pod["status"].get("conditions", ())]
    return "nodeName" in pod["spec"] or "Unschedulable" in reasons


def create_pods(site: Installation, team: str, demands: Sequence[PodDemand]) -> tuple[int, int]:
    """Create pods one by one; return how many are placed, and the thousandths of a GPU that all request."""
    path = f"/api/v1/namespaces/{team}/pods"
    for index, demand in enumerate(demands):
        site.plane.api.create(path, trace_pod(f"p{index}", team, demand))
        eventually(partial(site.plane.api.get, f"{path}/p{index}"), until=is_settled)
    pods = site.plane.api.get(path)["items"]
    names = [name for pod in pods for name in pod["spec"]["containers"][0]["resources"]["limits"]]
    milli = sum(CardUnit(PRODUCT, "" if name == WHOLE_GPU else name.removeprefix(MIG)).milli for name in names)
    return sum("nodeName" in pod["spec"] for pod in pods), milli


def wait_for_slices(site: Installation, team: str, node: str) -> None:
    """Wait until the webhook knows a node with slices."""
    probe = make_pod("probe").namespace(team).gpus(1).needs("1Gi").spec(nodeSelector={"kubernetes.io/hostname": node})
    path = f"/api/v1/namespaces/{team}/pods"

    def requested() -> set[str]:
        found = site.plane.api.create(path, probe.build(), dryRun="All")
        return set(found["spec"]["containers"][0]["resources"]["limits"])

    eventually(requested, until=lambda names: WHOLE_GPU not in names)


def test_planned_layouts_place_a_trace_with_fewer_gpus(site: Installation, team: str) -> None:
    demands, api = trace_pods(), site.plane.api
    names = [f"trace-{index}" for index in range(NODES)]
    layouts: dict[str, list[dict[str, int]]] = {name: [{}] * CARDS for name in names}
    add_nodes(site.plane, [trace_node(*each) for each in layouts.items()])
    try:
        placed, milli = create_pods(site, team, demands)
        plan = plan_layouts(site)

        path = f"/api/v1/namespaces/{team}/pods"
        api.delete(path, gracePeriodSeconds="0")
        eventually(lambda: not api.get(path)["items"])
        remove_nodes(site.plane, names)
        layouts |= {node["node"]: node["planned"] for node in plan["nodes"]}
        ordered = sorted(names, key=lambda name: most_equal_slices(layouts[name]))  # the webhook sees the last one last
        add_nodes(site.plane, [trace_node(name, layouts[name]) for name in ordered])
        wait_for_slices(site, team, ordered[-1])
        placed_after, milli_after = create_pods(site, team, demands)
    finally:
        remove_nodes(site.plane, names)

    planned = len(demands) - sum(row["unserved"] for row in plan["demand"] if row["namespace"] == team)
    print(  # noqa: T201  # the figures of docs/layout.md, shown by -s
        f"\n{NODES * CARDS} cards, {len(demands)} pods: {placed} placed that request {milli / 1000:g} GPUs; "
        f"after: {placed_after} of {planned} planned that request {milli_after / 1000:g} GPUs"
    )
    assert placed == min(len(demands), NODES * CARDS)
    slices = {profile for name in names for layout in layouts[name] for profile in layout}
    assert planned - UNASSIGNED * len(slices) <= placed_after <= planned
    assert placed_after > placed
    assert milli_after < milli == len(demands) * CARD_MILLI
