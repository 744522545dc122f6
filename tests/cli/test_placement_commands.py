"""capacity, place and simulate: exit codes, and messages for invalid input."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.cli.conftest import FILES, JUNE, Run
from tests.device_builders import device_class, partitionable_gpus, resource_claim
from tests.engine.test_claim_sizing import MIG
from tests.engine.test_claim_sizing import claim as sizable_claim
from tests.engine.test_class_offers import NODE
from tests.engine.test_fit import sizing
from tests.example_cluster import mig_node, policy, whole_node
from tests.placement.clusters import gpu_node

GPU = "nvidia.com/gpu"
SMALL = ["--cluster", "room/cluster.yaml"]
TRACE = ["--nodes", "room/nodes.csv", "--pods", "room/pods.csv"]

BAD_INPUT = [
    ("a kubeconfig for a snapshot", ["capacity", *SMALL, "--context", "a"], "a live cluster: write --cluster live"),
    ("a missing snapshot", ["capacity", "--cluster", "none.yaml"], "none.yaml: must be a YAML or JSON file"),
    ("a cluster without nodes", ["capacity", "--cluster", "room/pods.yaml"], "room/pods.yaml: no nodes here"),
    ("an unknown node", ["capacity", "nope", *SMALL], "nope: no such node in this cluster. It has"),
    ("a drawing of all nodes", ["capacity", *SMALL, "-o", "svg"], "-o svg: draws one node. Name it"),
    ("--links with --cluster", ["capacity", *SMALL, "--links", "room/dgx-1.txt"], "describes one machine. Leave"),
    ("a missing --links file", ["capacity", "--links", "none.txt"], "none.txt: cannot be read: No such file"),
    ("an invalid --links file", ["capacity", "--links", "room/pods.csv"], "must have a header line that starts"),
    ("no pods to place", ["place", "-f", "policies", *SMALL], "policies: no pods and no workloads here"),
    ("unreadable pods", ["place", "-f", "bad/broken.yaml", *SMALL], "bad/broken.yaml"),
    ("a trace with YAML pods", ["simulate", "--nodes", "room/nodes.csv", "--pods", "room"], "must both be one trace"),
    ("names of a trace", ["simulate", *TRACE, "-o", "name"], "must be used with Kubernetes pods"),
    ("an invalid trace", ["simulate", "--nodes", "room/pods.csv", "--pods", "room/pods.csv"],
     "room/pods.csv:1:1: must have the columns sn,"),
    ("policies for a trace", ["simulate", *TRACE, "--policies", "policies"], "must be used with Kubernetes pods"),
    ("a kubeconfig for a trace", ["simulate", *TRACE, "--kubeconfig", "k"], "must be used with Kubernetes pods"),
    ("a kubeconfig for a snapshot of nodes", ["simulate", "--nodes", "room/cluster.yaml", "--pods", "room/pods.yaml",
     "--context", "a"], "select a live cluster: write --nodes live"),
    ("no pods", ["simulate", "--nodes", "room/cluster.yaml", "--pods", "policies"], "policies: no pods here"),
    ("unreadable pods to simulate", ["simulate", "--nodes", "room/cluster.yaml", "--pods", "bad"], "error: bad/"),
]  # fmt: skip


def test_pods_of_which_none_is_selected_are_no_missing_pods(rightslice: Run) -> None:
    result = rightslice("place", "-f", "room/pods.yaml", "-l", "app=nomatch", *SMALL)

    assert "no pods and no workloads here" not in result.err
    assert "app=nomatch" in result.err


@pytest.mark.parametrize(("sentence", "arguments", "message"), BAD_INPUT, ids=[case[0] for case in BAD_INPUT])
def test_invalid_input_is_exit_code_2_with_a_message(
    rightslice: Run, sentence: str, arguments: list[str], message: str
) -> None:
    result = rightslice(*arguments)

    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_place_exits_with_0_if_every_pod_fits(rightslice: Run) -> None:
    pod = b"{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: m, image: i}]}}"

    assert rightslice("place", "-f", "-", *SMALL, "--now", JUNE, stdin=pod).code == 0


def test_a_machine_shows_which_gpus_pods_of_each_size_would_get(rightslice: Run) -> None:
    text = (FILES / "room" / "dgx-1.txt").read_bytes()
    document = orjson.loads(rightslice("capacity", "--links", "-", "-o", "json", stdin=text).out)

    assert [gpu["numaNode"] for gpu in document["gpus"]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [(one["allocated"], one["nvlinkConnected"]) for one in document["sets"][1:5]] == [
        ([0, 3], True),
        ([0, 2, 3], True),
        ([0, 1, 2, 3], True),
        ([0, 1, 2, 3, 4], False),
    ]
    drawn = ElementTree.fromstring(rightslice("capacity", "--links", "-", "-o", "svg", stdin=text).out)
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 8


def test_if_the_plugin_fails_no_gpus_are_allocated(rightslice: Run) -> None:
    text = b"GPU0 GPU1\nGPU0 X NV4\nGPU1 SYS X\n"
    *_, one, two = rightslice("capacity", "--links", "-", stdin=text).out.splitlines()
    document = orjson.loads(rightslice("capacity", "--links", "-", "-o", "json", stdin=text).out)

    assert [one.split(), two.split()] == [["1", "0", "-", "same"], ["2", "fails", "-", "0,1"]]
    assert [(each["allocated"], each["nvlinkConnected"]) for each in document["sets"]] == [([0], True), ([], False)]


def test_links_that_only_one_end_reports_in_full_are_links(rightslice: Run) -> None:
    text = b"GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X\n"
    *_, two = rightslice("capacity", "--links", "-", stdin=text).out.splitlines()

    assert two.split() == ["2", "0,1", "yes", "same"]


def test_place_handles_pods_of_workloads(rightslice: Run) -> None:
    result = rightslice("place", "-f", "room/pods.yaml", *SMALL, "--policies", "room/policy.yaml", "-o", "json")
    requests = {each["object"]: (each["resource"], each["count"]) for each in orjson.loads(result.out)["pods"]}

    assert requests["Pod team-vision/serve-*"] == ("nvidia.com/mig-3g.40gb", 1)


def test_replicas_are_simulated_one_by_one(rightslice: Run) -> None:
    result = rightslice("simulate", "--nodes", "room/cluster.yaml", "--pods", "room/pods.yaml", "-o", "json")
    last = orjson.loads(result.out)["steps"][-1]

    assert last["placed"] + last["unplaced"] == 6


def test_objects_with_pods_that_are_not_placed_are_named(rightslice: Run) -> None:
    pods = (
        deployment(1000)
        + b"\n---\n"
        + b"{apiVersion: v1, kind: Pod, metadata: {name: plain}, spec: {containers: [{name: a}]}}"
    )
    flags = ("simulate", "--cluster", "demo", "-f", "-", "--policies", "room/policy.yaml")
    unplaced = orjson.loads(rightslice(*flags, "-o", "json", stdin=pods).out)["unplacedObjects"]

    assert rightslice(*flags, "-o", "name", stdin=pods).out == "deployment.apps/many\n"
    assert [(each["name"], 0 < each["pods"] < 1000) for each in unplaced] == [("many", True)]


@pytest.mark.parametrize("strategy", ["tab", "fgd", "most-allocated", "default"])
def test_every_strategy_simulates_a_trace(rightslice: Run, strategy: str) -> None:
    document = orjson.loads(rightslice("simulate", *TRACE, "--strategy", strategy, "-o", "json").out)

    assert document["strategy"] == strategy
    assert document["capacityMilli"] == 6000
    assert all(one["requestedMilli"] <= next_["requestedMilli"] for one, next_ in pairwise(document["steps"]))
    assert document["steps"][-1]["placed"] + sum(each["pods"] for each in document["unplaced"]) == 8


def test_a_seed_is_reproducible_and_another_one_differs(rightslice: Run) -> None:
    def simulated(seed: int) -> str:
        return rightslice("simulate", *TRACE, "--seed", str(seed), "-o", "json").out

    assert simulated(1) == simulated(1)
    assert len({simulated(seed) for seed in range(8)}) > 1


def test_a_mix_can_be_learned_and_pods_can_come_in_order(rightslice: Run) -> None:
    document = orjson.loads(rightslice("simulate", *TRACE, "--learn", "--in-order", "-o", "json").out)

    assert document["steps"][0]["requestedMilli"] == 500


def test_pictures_are_xml_files(rightslice: Run, tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"

    result = rightslice("simulate", *TRACE, "-o", "table", "-o", f"svg={file}")

    assert result.code == 0
    assert "6 of 6 GPUs" in result.out or "GPUs allocated" in result.out
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


def test_a_node_without_gpus_is_said_to_have_none(rightslice: Run) -> None:
    result = rightslice("capacity", "--cluster", "demo", "cpu-1")

    assert (result.code, result.out) == (0, "cpu-1 has no GPUs\n")


def test_verbose_prints_sources(rightslice: Run) -> None:
    assert "cluster: room/cluster.yaml (3 nodes" in rightslice("capacity", *SMALL, "-v").err


def deployment(replicas: object, amount: str = '{nvidia.com/gpu: "1"}') -> bytes:
    """A Deployment whose pods fit on any node."""
    containers = f"[{{name: a, image: x, resources: {{limits: {amount}}}}}]"
    template = (
        f"{{metadata: {{labels: {{a: b}}}}, spec: {{tolerations: [{{operator: Exists}}], containers: {containers}}}}}"
    )
    spec = f"{{replicas: {replicas}, selector: {{matchLabels: {{a: b}}}}, template: {template}}}"
    return f"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: many}}, spec: {spec}}}".encode()


def simulate(rightslice: Run, pods: bytes) -> Any:
    """Simulate pods on the example cluster without policies."""
    result = rightslice(
        "simulate", "--nodes", "demo", "--pods", "-", "--policies", "room/policy.yaml", "-o", "json", stdin=pods
    )
    assert result.code == 0, result.err
    return orjson.loads(result.out)


def test_no_more_is_allocated_than_the_capacity(rightslice: Run) -> None:
    document = simulate(rightslice, deployment(100))
    totals = orjson.loads(rightslice("capacity", "--cluster", "demo", "-o", "json").out)["total"]

    assert document["initiallyAllocatedMilli"] == totals["allocatedMilli"]
    assert document["steps"][0]["allocatedMilli"] >= totals["allocatedMilli"]
    assert document["steps"][-1]["allocatedMilli"] <= document["capacityMilli"]
    assert document["steps"][-1]["unplaced"] > 0


def test_steps_of_a_workflow_are_simulated(rightslice: Run) -> None:
    container = "{image: x, resources: {limits: {nvidia.com/gpu: 1}}}"
    step = f"container: {container}, tolerations: [{{operator: Exists}}]"
    spec = f"{{templates: [{{name: a, {step}}}, {{name: b, {step}}}]}}"
    workflow = f"{{apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: {{name: many}}, spec: {spec}}}"
    amounts = [simulate(rightslice, each)["steps"][-1]["requestedMilli"] for each in (workflow.encode(), deployment(2))]

    assert amounts[0] == amounts[1]


def test_unplaced_replicas_are_counted(rightslice: Run) -> None:
    last, few = (simulate(rightslice, deployment(replicas))["steps"][-1] for replicas in (100_000, 100))

    assert last["placed"] == few["placed"]
    assert last["placed"] + last["unplaced"] == 100_000


def test_a_node_accepts_as_many_pods_as_it_declares(rightslice: Run) -> None:
    document = simulate(rightslice, deployment(1500, "{}"))

    assert document["unplaced"] == [{"message": "Too many pods", "pods": document["steps"][-1]["unplaced"]}]


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        (
            deployment(1, "{nvidia.com/gpu: 9223372036854775807}"),
            "stdin:1:1: Pod default/many-* requests 9223372036854775807",
        ),
        (deployment(2_000_000), "must have at most 1000000 pods"),
    ],
    ids=["a request larger than any node", "too many replicas"],
)
def test_the_size_of_a_simulation_is_limited(rightslice: Run, pods: bytes, message: str) -> None:
    result = rightslice("simulate", "--nodes", "demo", "--pods", "-", stdin=pods)

    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("replicas", "code"),
    [(0, 0), (2, 0), (500, 1)],
    ids=["no replicas", "all replicas fit", "some replicas do not fit"],
)
def test_place_exits_with_0_if_all_replicas_fit(rightslice: Run, replicas: int, code: int) -> None:
    assert rightslice("place", "-f", "-", "--cluster", "demo", stdin=deployment(replicas)).code == code


@pytest.mark.parametrize("command", ["place --cluster demo -f -", "simulate --nodes demo --pods -"])
@pytest.mark.parametrize("replicas", ["-1", '"3"', "1.5", "true", "[]"])
def test_invalid_replica_counts_are_an_error(rightslice: Run, command: str, replicas: str) -> None:
    result = rightslice(*command.split(), stdin=deployment(replicas))

    assert result.code == 2
    assert "stdin:1:" in result.err
    assert "spec.replicas: must be a whole number from 0 to 2147483647, found " in result.err


BAD_PODS = {
    "a pod": (b"apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {tolerations: [{value: y}]}", (4, 30),
              "Pod bad: spec.tolerations[0].value: must be text, found true or false"),
    "a pod without containers": (b"apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: []}", (4, 20),
                                 "Pod bad: spec.containers: must have at least one container"),
    "a template": (deployment(2).replace(b"[{operator: Exists}]", b"[{\nvalue: y}]"), (2, 8),
                   "Deployment many: spec.template: is not a Pod: spec.tolerations[0].value: must be text"),
    "no template": (b"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d},\nspec: {template: {spec: 5}}}",
                    (2, 18), "Deployment d: spec.template: must have a map under spec, found '5'"),
    "no metadata": (b"{apiVersion: apps/v1, kind: Deployment,\nmetadata: [], spec: {template: {spec: {}}}}", (2, 11),
                    "Deployment (no name): metadata must be a map"),
}  # fmt: skip


@pytest.mark.parametrize("pods", BAD_PODS.values(), ids=BAD_PODS)
def test_unreadable_pods_are_reported_and_the_others_placed(
    rightslice: Run, pods: tuple[bytes, tuple[int, int], str]
) -> None:
    bad, (line, column), sentence = pods
    good = b"\n---\n{apiVersion: v1, kind: Pod, metadata: {name: good}, spec: {containers: [{name: m, image: i}]}}"
    alone = rightslice("place", "-f", "-", *SMALL, stdin=bad)
    beside = rightslice("place", "-f", "-", *SMALL, stdin=bad + good)
    simulated = rightslice("simulate", "--nodes", "demo", "--pods", "-", stdin=bad + good)

    assert (alone.code, beside.code, simulated.code) == (2, 2, 2)
    for result in (alone, beside, simulated):
        assert result.err.startswith(f"error: stdin:{line}:{column}: {sentence}")
    assert "Pod default/good" in beside.out
    assert "bad" not in beside.out
    assert simulated.out == ""


def test_no_replicas_are_no_pods(rightslice: Run) -> None:
    pods = deployment(0) + b"\n---\n" + deployment(2)
    last = simulate(rightslice, pods)["steps"][-1]

    assert last["placed"] + last["unplaced"] == 2


def test_a_trace_without_nodes_is_rejected(rightslice: Run, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\n")

    result = rightslice("simulate", "--nodes", str(tmp_path / "nodes.csv"), "--pods", "room/pods.csv")

    assert result.code == 2
    assert "nodes.csv:1:1: must have rows under its header, found none" in result.err


UNUSABLE = {
    "cordoned": ({"unschedulable": True}, "True"),
    "not ready": ({}, "False"),
}


@pytest.mark.parametrize(("spec", "ready"), UNUSABLE.values(), ids=UNUSABLE)
def test_unused_gpus_of_unschedulable_nodes_are_not_free(
    spec: Json, ready: str, rightslice: Run, tmp_path: Path
) -> None:
    nodes = [make_node("open", {}, **{GPU: 4}), make_node("closed", {}, **{GPU: 8})]
    nodes[1]["spec"] = spec
    nodes[1]["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    file = tmp_path / "cluster.json"
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))

    document = orjson.loads(rightslice("capacity", "--cluster", str(file), "-o", "json").out)
    table = rightslice("capacity", "--cluster", str(file)).out

    assert (document["total"]["freeMilli"], document["total"]["unschedulableMilli"]) == (4000, 8000)
    assert [(one["name"], one["freeMilli"], one["schedulable"]) for one in document["nodes"]] == [
        ("open", 4000, True),
        ("closed", 0, False),
    ]
    assert "unschedulable, 8 unused" in next(line for line in table.splitlines() if line.startswith("closed"))


def test_a_node_as_json_has_its_links_and_pods(rightslice: Run) -> None:
    document = orjson.loads(rightslice("capacity", "h100-1", "--cluster", "demo", "-o", "json").out)

    assert document["node"]["name"] == "h100-1"
    assert [gpu["links"][:2] for gpu in document["gpus"][:2]] == [["X", "NV18"], ["NV18", "X"]]
    assert document["pods"] == [{"namespace": "team-nlp", "name": "llm-train-0", "gpus": {GPU: 8}}]


UNSIMULATED = {
    "volume topology": {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{"name": "a"}],
    },
    "": {"containers": [{"name": "a"}]},
}


@pytest.mark.parametrize(("what", "spec"), UNSIMULATED.items())
def test_simulate_names_constraints_that_it_does_not_evaluate(rightslice: Run, what: str, spec: object) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }

    result = rightslice("simulate", "--nodes", "demo", "--pods", "-", stdin=orjson.dumps(workload))

    assert result.code == 0
    _, *notes = result.err.splitlines()
    assert notes == ([f"note: not evaluated: {what} (6 pods). A scheduler may place fewer of them"] if what else [])


@pytest.mark.parametrize(("gpus", "placed"), [(1, 3), (5, 0)])
def test_a_daemon_set_is_simulated_with_a_pod_per_node(rightslice: Run, tmp_path: Path, gpus: int, placed: int) -> None:
    file = tmp_path / "nodes.json"
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [gpu_node(name) for name in "abc"]}))
    daemons = deployment(1, f'{{nvidia.com/gpu: "{gpus}"}}').replace(b"kind: Deployment", b"kind: DaemonSet")
    daemons = daemons.replace(b"replicas: 1, ", b"")

    result = rightslice("simulate", "--nodes", str(file), "--pods", "-", "-o", "json", stdin=daemons)
    document = orjson.loads(result.out)

    assert document["steps"][-1]["placed"] == placed
    assert sum(each["pods"] for each in document["unplaced"]) == 3 - placed


@pytest.mark.parametrize(("key", "placed"), [("kubernetes.io/hostname", 3), ("zone", 2)])
def test_replicas_that_exclude_each_other_are_placed_one_in_each_domain(
    rightslice: Run, tmp_path: Path, key: str, placed: int
) -> None:
    nodes = [gpu_node(name, zone=zone) for name, zone in ("a1", "b1", "c2")]
    for node in nodes:
        node["metadata"]["labels"]["kubernetes.io/hostname"] = node["metadata"]["name"]
    file = tmp_path / "nodes.json"
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    term = f"{{topologyKey: {key}, labelSelector: {{matchLabels: {{a: b}}}}}}"
    affinity = f"affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{term}]}}}}, "
    pods = deployment(5).replace(b"spec: {tolerations", f"spec: {{{affinity}tolerations".encode())

    result = rightslice("simulate", "--nodes", str(file), "--pods", "-", "-o", "json", stdin=pods)
    document = orjson.loads(result.out)

    assert document["steps"][-1]["placed"] == placed
    assert [(each["pods"], each["message"]) for each in document["unplaced"]] == [
        (5 - placed, "node(s) didn't match pod anti-affinity rules")
    ]
    assert "anti-affinity" not in result.err


QUOTA_OF_FOUR = b"""
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: team}
spec: {hard: {requests.nvidia.com/gpu: "4"}}
status: {hard: {requests.nvidia.com/gpu: "4"}, used: {requests.nvidia.com/gpu: "0"}}
---
apiVersion: v1
kind: Node
metadata: {name: big, labels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, nvidia.com/gpu.memory: "81920"}}
status: {allocatable: {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}}
"""


def test_quotas_admit_the_replicas_of_all_objects_one_after_another(rightslice: Run, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_bytes(QUOTA_OF_FOUR)
    pods = b"\n---\n".join(gpu_deployment(name, 3) for name in (b"one", b"two"))

    run = rightslice("simulate", "--nodes", tmp_path / "cluster.yaml", "--pods", "-", "-o", "json", stdin=pods)

    assert orjson.loads(run.out)["unplaced"] == [{"message": "denied by the webhook: GPU-Q301", "pods": 2}]
    assert orjson.loads(run.out)["steps"][-1]["placed"] == 4


SIZING = b"""
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: sizing}
spec:
  mode: enforce
  rightSizing: {whenFull: %s}
"""
SMALL_PODS = b"""
apiVersion: apps/v1
kind: Deployment
metadata: {name: small, namespace: team}
spec:
  replicas: 12
  template:
    metadata: {annotations: {rightslice.dev/gpu-memory: 8Gi}}
    spec: {containers: [{name: m, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
WHEN_FULL = {
    "pods that find no slice keep whole cards": (b"keep", 12, {}),
    "pods wait for slices": (b"wait", 7, {"Insufficient nvidia.com/mig-1g.10gb": 5}),
}


@pytest.mark.parametrize(("mode", "placed", "unplaced"), WHEN_FULL.values(), ids=WHEN_FULL)
def test_each_replica_is_admitted_in_the_cluster_that_it_finds(
    rightslice: Run, tmp_path: Path, mode: bytes, placed: int, unplaced: dict[str, int]
) -> None:
    """Seven slices and eight whole cards."""
    nodes = [whole_node(), mig_node(large=0)]
    (tmp_path / "nodes.json").write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    (tmp_path / "policy.yaml").write_bytes(SIZING % mode)
    flags = ("--nodes", tmp_path / "nodes.json", "--policies", tmp_path / "policy.yaml")

    run = rightslice("simulate", *flags, "--pods", "-", "-o", "json", stdin=SMALL_PODS)

    document = orjson.loads(run.out)
    found = {each["message"]: each["pods"] for each in document["unplaced"]}
    assert (document["steps"][-1]["placed"], found) == (placed, unplaced)


PREDICTOR = b"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: flowers, namespace: team}
spec:
  predictor:
    annotations: {rightslice.dev/gpu-memory: 8Gi}
    model: {modelFormat: {name: tensorflow}, resources: {limits: {nvidia.com/gpu: 1}}}
"""


def test_place_promises_no_slice_to_pods_that_are_not_known(rightslice: Run, tmp_path: Path) -> None:
    nodes = [whole_node(), mig_node()]
    (tmp_path / "nodes.json").write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    (tmp_path / "policy.yaml").write_bytes(SIZING % b"keep")
    flags = ("--cluster", tmp_path / "nodes.json", "--policies", tmp_path / "policy.yaml", "-f", "-", "-o", "json")

    requests = [
        orjson.loads(rightslice("place", *flags, stdin=text).out)["pods"][0]["resource"]
        for text in (PREDICTOR, SMALL_PODS)
    ]

    assert requests == ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]


def test_place_and_simulate_name_unknown_kinds(rightslice: Run) -> None:
    unknown = b"{apiVersion: example.com/v1, kind: Trainer, metadata: {name: t}, spec: {nvidia.com/gpu: 1}}"
    for command in (("place", "--cluster", "demo", "-f", "-"), ("simulate", "--nodes", "demo", "--pods", "-")):
        assert "Trainer is an unknown kind" in rightslice(*command, stdin=unknown).err


@pytest.mark.parametrize(("replicas", "admitted", "code"), [(4, 4, 0), (5, 4, 1)])
def test_place_shows_how_many_replicas_a_quota_admits(
    rightslice: Run, tmp_path: Path, replicas: int, admitted: int, code: int
) -> None:
    (tmp_path / "cluster.yaml").write_bytes(QUOTA_OF_FOUR)
    flags = ("--cluster", tmp_path / "cluster.yaml", "-f", "-")

    run = rightslice("place", *flags, "-o", "json", stdin=gpu_deployment(b"a", replicas))
    table = rightslice("place", *flags, stdin=gpu_deployment(b"a", replicas)).out

    assert orjson.loads(run.out)["pods"][0]["admitted"] == admitted
    assert run.code == code
    assert ("Quotas admit 4 of 5 replicas with this request now." in table) is bool(code)


def gpu_deployment(name: bytes, replicas: int) -> bytes:
    template = (
        b"{metadata: {labels: {a: b}}, spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
    )
    head = b"{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, namespace: team}, spec: {replicas: %d,"
    return head % (name, replicas) + b" template: " + template + b"}}"


def test_place_and_simulate_say_in_a_word_why_pods_keep_their_request(rightslice: Run) -> None:
    pods, cluster = "../../../examples/pods/04-three-gpus.yaml", "demo"
    placed = orjson.loads(rightslice("place", "-f", pods, "--cluster", cluster, "-o", "json").out)
    assert [each["keepReason"] for each in placed["pods"]] == ["MultipleGPUs"]
    simulated = orjson.loads(rightslice("simulate", "--pods", pods, "--nodes", cluster, "-o", "json").out)
    assert simulated["keepReasons"] == {"MultipleGPUs": 1}
    [unplaced] = simulated["unplaced"]
    assert unplaced["pods"] == 1
    assert unplaced["message"].startswith("denied by the webhook: ")


ROOM_POLICY = ["--policies", "room/policy.yaml"]
CLASS = device_class("gpu", "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'")
CLAIMS = {
    "resourceClaimTemplateName": resource_claim("t") | {"kind": "ResourceClaimTemplate"},
    "resourceClaimName": resource_claim("t"),
}
CLAIMS["resourceClaimTemplateName"]["spec"] = {"spec": CLAIMS["resourceClaimName"]["spec"]}


@pytest.mark.parametrize(("field", "claim"), CLAIMS.items(), ids=CLAIMS)
def test_place_and_simulate_read_the_claims_of_the_files(
    rightslice: Run, tmp_path: Path, field: str, claim: Json
) -> None:
    file = tmp_path / "cluster.json"
    nodes = [make_node(name, {}) for name in ("a", "b")]
    objects = [*nodes, CLASS, *partitionable_gpus("b")]
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    pod = make_pod("p").namespace("team").spec(resourceClaims=[{"name": "g", field: "t"}]).build()
    files = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [claim, pod]})

    placed = rightslice("place", "-f", "-", "--cluster", str(file), "-o", "json", stdin=files)
    assert [each["node"] for each in orjson.loads(placed.out)["pods"][0]["nodes"]] == ["b"]

    simulated = rightslice("simulate", "--nodes", str(file), "--pods", "-", "-o", "json", *ROOM_POLICY, stdin=files)
    assert orjson.loads(simulated.out)["steps"][-1]["allocatedMilli"] == 1000


def test_pods_get_devices_by_claims_as_the_webhook_right_sizes_them(rightslice: Run, tmp_path: Path) -> None:
    file, policies = tmp_path / "cluster.json", tmp_path / "policy.yaml"
    policies.write_text(policy(sizing()))
    nodes = [make_namespace("team"), NODE, *partitionable_gpus("a", 2), CLASS, MIG]
    file.write_bytes(orjson.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    template = sizable_claim(kind="ResourceClaimTemplate", about={"name": "t"})
    claimed = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    pods = [make_pod(f"p{i}").namespace("team").spec(**claimed).build() for i in range(5)]
    files = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [*pods, template]})
    flags = ("--nodes", str(file), "--pods", "-", "-o", "json", "--policies", str(policies))

    last = orjson.loads(rightslice("simulate", *flags, stdin=files).out)["steps"][-1]
    assert (last["placed"], last["unplaced"]) == (5, 0)
