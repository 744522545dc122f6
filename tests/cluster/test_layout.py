"""The script of `layout --write` on a real API server, where a thread answers node labels as the MIG manager does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.builders import make_node, make_pod
from tests.cluster.accounts import RBAC, bind_account, documented_role
from tests.cluster.client import Json
from tests.cluster.nodes import NODES, add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.test_crds import is_served
from tests.conftest import ROOT
from webhook.placement.mig import MigLayout
from webhook.placement.node_layouts import NodeChange, NodeLayout
from webhook.report.layout_files import CONFIG_MAP, SHARING_CONFIG_MAP, config_name, layout_files

H100 = "NVIDIA-H100-80GB-HBM3"
SEVEN: MigLayout = (("1g.10gb", 7),)
MAPS = (CONFIG_MAP, SHARING_CONFIG_MAP)
SHARES = {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "4"}
CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
CRD: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterpolicies.nvidia.com"},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def operator(plane: Plane) -> Iterator[Plane]:
    """A plane with the GPU Operator's policy, which names our ConfigMap."""
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(CRD))
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
    plugin = {"config": {"name": SHARING_CONFIG_MAP}}
    spec = {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": CONFIG_MAP}}, "devicePlugin": plugin}
    policy = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    eventually(lambda: is_served(plane, POLICIES))
    plane.api.create(POLICIES, {**policy, "spec": spec})
    yield plane
    plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump(CRD))
    plane.api.delete("/api/v1/namespaces/gpu-operator")


class NodeManagers:
    """The MIG manager and the device plugin of each node: they work when a label of it changes, as NVIDIA's do.

    Attributes:
        results: Answers of the MIG manager other than success, by node: the next one first.
        requests: The configurations that the MIG manager was asked for, by node.
    """

    def __init__(self, plane: Plane) -> None:
        self.results: dict[str, list[str]] = {}
        self.requests: dict[str, list[str]] = {}
        self._plane = plane
        self._labels: dict[str, str] = {}
        words = "{.metadata.name} {.metadata.labels.nvidia\\.com/device-plugin\\.config}"
        template = f"{words} {{.metadata.labels.nvidia\\.com/mig\\.config}}{{'\\n'}}"
        command = ["kubectl", "get", "nodes", "--watch", "-o", f"jsonpath={template}"]
        self._watch = subprocess.Popen(command, env=plane.kubectl_environment(), stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._answer_changes)
        self._thread.start()

    def stop(self) -> None:
        """End the watch of the nodes."""
        self._watch.kill()
        self._thread.join()
        self._watch.communicate()

    def _answer_changes(self) -> None:
        for line in self._watch.stdout or ():
            name, sharing, config = line.rstrip("\n").split(" ")
            if config and config != self._labels.get(name):
                self.requests.setdefault(name, []).append(config)
                result = next(iter(self.results.get(name, ())), "success")
                self.results[name] = self.results.get(name, [])[1:]
                self._plane.api.patch(f"{NODES}/{name}", {"metadata": {"labels": {STATE: result}}})
            self._labels[name] = config
            if sharing == "time-slicing-4":
                self._plane.api.patch(f"{NODES}/{name}/status", {"status": {"allocatable": SHARES, "capacity": SHARES}})


@pytest.fixture
def cards(operator: Plane) -> Iterator[list[str]]:
    """Two nodes with two H100 each."""
    names = add_nodes(operator, [make_node(name, {}, **{"nvidia.com/gpu": 2}) for name in ("card-a", "card-b")])
    yield names
    for name in names:
        on_node = ("--all-namespaces", f"--field-selector=spec.nodeName={name}")
        operator.kubectl("delete", "pods", *on_node, "--force", "--grace-period=0")
    remove_nodes(operator, names)


@pytest.fixture(autouse=True)
def managers(operator: Plane, cards: list[str]) -> Iterator[NodeManagers]:
    """What answers the labels of the nodes."""
    started = NodeManagers(operator)
    yield started
    started.stop()


def run_script(
    plane: Plane, folder: Path, *changes: NodeChange, max_unavailable: int = 1, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Write the files, and run the script with some variables."""
    for name, text in layout_files(changes, max_unavailable).items():
        (folder / name).write_text(text)
    return subprocess.run(
        ["sh", str(folder / "apply.sh")],
        env=plane.kubectl_environment() | settings,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def change(name: str, pods: int = 0) -> NodeChange:
    """A node whose first card is partitioned."""
    return NodeChange(NodeLayout(name, H100, ((), ()), pods=pods), (SEVEN, ()))


def node_state(plane: Plane, name: str) -> tuple[str | None, str | None, bool]:
    """The configuration of a node, its state, and whether it is cordoned."""
    node = plane.api.get(f"{NODES}/{name}")
    labels = node["metadata"]["labels"]
    return labels.get(CONFIG), labels.get(STATE), node["spec"].get("unschedulable", False)


DONE = (config_name((SEVEN, ())), "success", False)


def cordoning_steps(output: str) -> list[str]:
    """The cordons and uncordons of a run, in order."""
    words = (line.removeprefix("node/").split() for line in output.splitlines())
    return [f"{each[1]} {each[0]}" for each in words if each[1:] and each[1] in ("cordoned", "uncordoned")]


def test_nodes_change_one_after_the_other(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    done = run_script(operator, tmp_path, *map(change, cards))

    assert done.returncode == 0, done.stderr
    assert cordoning_steps(done.stdout) == [
        "cordoned card-a",
        "uncordoned card-a",
        "cordoned card-b",
        "uncordoned card-b",
    ]
    assert [node_state(operator, name) for name in cards] == [DONE, DONE]
    config = operator.api.get(f"/api/v1/namespaces/gpu-operator/configmaps/{CONFIG_MAP}")["data"]["config.yaml"]
    assert DONE[0] in yaml.safe_load(config)["mig-configs"]


def test_two_nodes_change_at_once_and_a_second_run_changes_nothing(
    operator: Plane, cards: list[str], tmp_path: Path
) -> None:
    done = run_script(operator, tmp_path, *map(change, cards), max_unavailable=2)
    again = run_script(operator, tmp_path, *map(change, cards), max_unavailable=2)

    assert cordoning_steps(done.stdout)[:2] == ["cordoned card-a", "cordoned card-b"]
    assert (again.returncode, cordoning_steps(again.stdout)) == (0, []), again.stderr
    assert [node_state(operator, name) for name in cards] == [DONE, DONE]


def test_a_node_that_runs_a_pod_with_gpus_is_not_changed(
    operator: Plane, cards: list[str], namespace: str, tmp_path: Path
) -> None:
    pod = make_pod("busy").namespace(namespace).gpus(1).spec(nodeName="card-a").build()
    operator.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)

    done = run_script(operator, tmp_path, change("card-a"))

    assert done.returncode == 1
    assert f"a new layout of card-a would kill pods: {namespace}/busy. Plan again" in done.stderr
    assert cordoning_steps(done.stdout) == ["cordoned card-a", "uncordoned card-a"]
    assert node_state(operator, "card-a") == (None, None, False)


def test_a_node_that_is_done_or_was_cordoned_before_stays_cordoned(
    operator: Plane, cards: list[str], tmp_path: Path
) -> None:
    assert run_script(operator, tmp_path, change("card-b")).returncode == 0
    for name in cards:
        operator.kubectl("cordon", name)

    done = run_script(operator, tmp_path, *map(change, cards))

    assert (done.returncode, cordoning_steps(done.stdout)) == (0, []), done.stderr
    assert [node_state(operator, name) for name in cards] == [(*DONE[:2], True)] * 2


def test_a_node_whose_drain_fails_is_uncordoned(
    operator: Plane, cards: list[str], namespace: str, tmp_path: Path
) -> None:
    pod = make_pod("busy").namespace(namespace).gpus(1).spec(nodeName="card-a").build()
    operator.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)  # kubectl drain evicts no pod without an owner

    done = run_script(operator, tmp_path, change("card-b"), change("card-a", pods=1), max_unavailable=2)

    assert done.returncode == 1
    assert "error: not all pods of card-a were evicted" in done.stderr
    assert [node_state(operator, name) for name in cards] == [(None, None, False)] * 2


def test_a_node_that_failed_stays_cordoned_and_is_retried(
    operator: Plane, cards: list[str], managers: NodeManagers, tmp_path: Path
) -> None:
    managers.results = {"card-a": ["failed", "failed"]}
    runs = [run_script(operator, tmp_path, change("card-a")) for _ in range(2)]
    state = node_state(operator, "card-a")
    command = [sys.executable, "-m", "webhook.cli", "layout", "status", str(tmp_path)]
    environment = operator.kubectl_environment()
    status = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    last = run_script(operator, tmp_path, change("card-a"))

    assert [run.returncode for run in runs] == [1, 1]
    assert all("the MIG manager failed on card-a, which stays cordoned" in run.stderr for run in runs)
    assert state == (DONE[0], "failed", True)
    assert (status.returncode, status.stdout.splitlines()[1].split()[3]) == (1, "failed")
    assert "note: the MIG manager failed on card-a. Read its log, then run apply.sh again" in status.stderr
    assert (last.returncode, cordoning_steps(last.stdout)) == (0, ["uncordoned card-a"]), last.stderr
    assert managers.requests["card-a"] == [DONE[0]] * 3
    assert node_state(operator, "card-a") == DONE


def test_shares_alone_need_nothing_of_the_mig_manager(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    path, theirs = f"{POLICIES}/cluster-policy", {"mig": {"strategy": "single"}, "migManager": {"config": None}}
    own = {"mig": {"strategy": "mixed"}, "migManager": {"config": {"name": CONFIG_MAP}}}
    operator.api.patch(path, {"spec": theirs})
    try:
        shared = NodeChange(NodeLayout("card-a", H100, ((),)), ((("timeSlicing/4", 4),),))
        done = run_script(operator, tmp_path, shared)
    finally:
        operator.api.patch(path, {"spec": own})

    assert done.returncode == 0, done.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["apply.sh", "device-plugin-config.yaml"]


def test_a_configuration_of_shares_of_other_nodes_must_be_in_the_file(
    operator: Plane, cards: list[str], tmp_path: Path
) -> None:
    operator.api.patch(f"{NODES}/card-b", {"metadata": {"labels": {"nvidia.com/device-plugin.config": "theirs"}}})

    done = run_script(operator, tmp_path, NodeChange(NodeLayout("card-a", H100, ((),)), ((("timeSlicing/4", 4),),)))

    assert done.returncode == 1
    assert "label nvidia.com/device-plugin.config=theirs. Copy this configuration" in done.stderr


def test_a_card_is_partitioned_and_the_other_is_shared(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    shared = NodeChange(NodeLayout("card-a", H100, ((), ())), (SEVEN, (("timeSlicing/4", 4),)))
    first = run_script(operator, tmp_path, shared)
    again = run_script(operator, tmp_path, shared)

    assert first.returncode == 0, first.stderr
    assert node_state(operator, "card-a") == DONE
    labels = operator.api.get(f"{NODES}/card-a")["metadata"]["labels"]
    assert labels["nvidia.com/device-plugin.config"] == "time-slicing-4"
    path = f"/api/v1/namespaces/gpu-operator/configmaps/{SHARING_CONFIG_MAP}"
    assert list(operator.api.get(path)["data"]) == ["time-slicing-4"]
    assert (again.returncode, "card-a cordoned" in again.stdout) == (0, False), again.stderr


def test_a_later_plan_keeps_the_configurations_of_other_nodes(
    operator: Plane, cards: list[str], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    shares, halves = (("timeSlicing/4", 4),), (("3g.40gb", 2),)
    earlier = run_script(operator, first, NodeChange(NodeLayout("card-a", H100, ((), ())), (SEVEN, shares)))
    fewer = NodeChange(NodeLayout("card-b", H100, ((), shares)), (halves, ()))

    later = run_script(operator, second, fewer)

    assert (earlier.returncode, later.returncode) == (0, 0), earlier.stderr + later.stderr
    maps = [operator.api.get(f"/api/v1/namespaces/gpu-operator/configmaps/{name}")["data"] for name in MAPS]
    assert yaml.safe_load(maps[0]["config.yaml"])["mig-configs"].keys() == {
        *("all-disabled", DONE[0], config_name((halves, ())))
    }
    assert maps[1].keys() == {"time-slicing-4", "not-shared"}
    assert yaml.safe_load(maps[1]["time-slicing-4"])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4


def test_the_status_follows_the_script(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "webhook.cli", "layout", "status", str(tmp_path)]
    for name, text in layout_files(list(map(change, cards)), 1).items():
        (tmp_path / name).write_text(text)
    environment = operator.kubectl_environment()
    before = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    watch = [*command, "--watch", "--timeout", str(COMMAND_SECONDS)]
    with subprocess.Popen(watch, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as following:
        done = run_script(operator, tmp_path, *map(change, cards))
        lines, _ = following.communicate(timeout=COMMAND_SECONDS)

    assert done.returncode == 0, done.stderr
    assert before.returncode == 1, before.stderr
    assert [line.split()[:5] for line in before.stdout.splitlines()[1:]] == [
        [name, DONE[0], "-", "not", "requested"] for name in cards
    ]
    assert following.returncode == 0
    found = [line.split() for line in lines.splitlines()]
    assert found[0] == ["NODE", "CONFIG", "SHARING", "STATE", "SINCE", "CORDONED"]
    last = {words[0]: words for words in found[1:]}
    assert {name: words[3] for name, words in last.items()} == dict.fromkeys(cards, "success")
    assert all(re.fullmatch(r"[0-9-]+T[0-9:]+Z", words[4]) for words in last.values())


CLAIMED: dict[str, tuple[Json, bool]] = {
    "a GPU of a claim": ({"driver": "gpu.nvidia.com"}, False),
    "a device of another driver": ({"driver": "nic.example.com"}, True),
    "access to a GPU for administration": ({"driver": "gpu.nvidia.com", "adminAccess": True}, True),
}


@pytest.mark.parametrize(("device", "changes"), CLAIMED.values(), ids=CLAIMED.keys())
def test_a_node_that_runs_a_pod_with_a_claim(
    operator: Plane, cards: list[str], namespace: str, tmp_path: Path, device: Json, changes: bool
) -> None:
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    operator.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {ADMIN_ACCESS: "true"}}})
    admin = {"adminAccess": True} if "adminAccess" in device else {}
    request = {"name": "device", "exactly": {"deviceClassName": "any.example.com", **admin}}
    claim = {"metadata": {"name": "device"}, "spec": {"devices": {"requests": [request]}}}
    operator.api.create(claims, claim)
    pod = make_pod("user").namespace(namespace)
    pod = pod.spec(nodeName="card-a", resourceClaims=[{"name": "device", "resourceClaimName": "device"}])
    operator.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build())
    result = {"request": "device", "pool": "card-a", "device": "device-0", **device}
    allocation = {"devices": {"results": [result]}}
    operator.api.patch(f"{claims}/device/status", {"status": {"allocation": allocation}})

    done = run_script(operator, tmp_path, change("card-a"))

    assert (done.returncode == 0) is changes, done.stderr
    assert (f"a new layout of card-a would kill pods: {namespace}/user. Plan again" in done.stderr) is not changes


def test_a_node_is_drained_where_the_plan_allows_that(
    operator: Plane, cards: list[str], namespace: str, tmp_path: Path
) -> None:
    pod = make_pod("busy").namespace(namespace).gpus(1).spec(nodeName="card-a").build()
    operator.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    flags = "--ignore-daemonsets --force --grace-period=0"

    done = run_script(operator, tmp_path, change("card-a", pods=1), DRAIN_FLAGS=flags)

    assert done.returncode == 0, done.stderr
    assert "pod/busy" in done.stdout
    assert node_state(operator, "card-a") == DONE


def test_a_configuration_of_other_nodes_must_be_in_the_file(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    operator.api.patch(f"{NODES}/card-b", {"metadata": {"labels": {CONFIG: "all-balanced"}}})

    done = run_script(operator, tmp_path, change("card-a"))

    assert done.returncode == 1
    assert "nodes have the label nvidia.com/mig.config=all-balanced. Copy this configuration" in done.stderr
    assert node_state(operator, "card-a") == (None, None, False)


def test_the_operator_must_use_the_config_map(operator: Plane, cards: list[str], tmp_path: Path) -> None:
    path, own = f"{POLICIES}/cluster-policy", {"migManager": {"config": {"name": CONFIG_MAP}}}
    operator.api.patch(path, {"spec": {"migManager": {"config": {"name": "theirs"}}}})
    try:
        done = run_script(operator, tmp_path, change("card-a"))
    finally:
        operator.api.patch(path, {"spec": own})

    assert done.returncode == 1
    [command] = [line for line in done.stderr.splitlines() if "kubectl patch" in line]
    spec = {"mig": {"strategy": "mixed"}, **own}
    assert json.loads(command.partition(" -p ")[2].strip("'")) == {"spec": spec}
    assert node_state(operator, "card-a") == (None, None, False)


@pytest.fixture
def small_pods(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """A node with four whole cards, of which three pods use a small part each; and a policy for these pods."""
    labels = {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.count": "4"}
    names = add_nodes(plane, [make_node("live-a", labels, **{"nvidia.com/gpu": 4})])
    small = (make_pod(f"p{i}").namespace(namespace).gpus(1).needs("8Gi").spec(nodeName="live-a") for i in range(3))
    for pod in small:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build())
    spec = {"mode": "enforce", "rightSizing": {"isolation": "hardware", "evidence": ["declared"]}}
    policy = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "p"}, "spec": spec}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    yield tmp_path / "policy.yaml"
    remove_nodes(plane, names)


def plan_cluster(policy: Path, *cluster: str) -> subprocess.CompletedProcess[str]:
    """Run `layout` with a policy."""
    command = [sys.executable, "-m", "webhook.cli", "layout", "--policies", str(policy), "-o", "json", *cluster]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)


def test_a_live_cluster_has_the_plan_of_its_snapshot(plane: Plane, small_pods: Path, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(plane.kubectl("get", "nodes,pods", "-A", "-o", "json").stdout)
    live = plan_cluster(small_pods, "--cluster", "live", "--kubeconfig", str(plane.kubeconfig))
    snapshot = plan_cluster(small_pods, "--cluster", str(tmp_path / "cluster.json"))

    assert live.returncode == 0, live.stderr
    assert json.loads(live.stdout) == json.loads(snapshot.stdout)
    assert json.loads(live.stdout)["cardsUsed"] == {"today": 3, "planned": 1, "lowerBound": 1}


def test_an_account_that_may_not_list_budgets_gets_a_plan_that_drains_no_node(
    plane: Plane, namespace: str, small_pods: Path, tmp_path: Path
) -> None:
    role = documented_role("docs/console.md")
    name = role["metadata"]["name"] = f"no-budgets-{namespace}"
    for rule in role["rules"]:
        rule["resources"] = [each for each in rule["resources"] if each != "poddisruptionbudgets"]
    plane.api.create(f"{RBAC}/clusterroles", role)
    account = tmp_path / "account.json"
    binding = bind_account(plane, namespace, name, account)
    try:
        ran = plan_cluster(small_pods, "--cluster", "live", "--kubeconfig", str(account))
    finally:
        plane.api.delete(binding)
        plane.api.delete(f"{RBAC}/clusterroles/{name}")

    assert ran.returncode == 0, ran.stderr
    assert "warning: PodDisruptionBudgets: listing them in all namespaces is not permitted" in ran.stderr
    plan = json.loads(ran.stdout)
    assert plan["notDrained"] == {"live-a": None}
    assert plan["nodes"] == []
    assert plan["cardsUsed"]["planned"] == plan["cardsUsed"]["today"]
