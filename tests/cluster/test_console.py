"""The console over a real cluster, for an account that can only read it: pods come and go, and pages follow."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cluster.accounts import RBAC, bind_account, documented_role
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_agent import DEFINITIONS, GPUNODES
from tests.cluster.test_crds import is_served
from tests.console.conftest import page_words
from tests.placement.clusters import gpu_node_report
from tests.usage.hostile_servers import fake_prometheus, serve_answer
from webhook.policy.crds import gpunode_crd

READ_VERBS = {"get", "list"}
PATHS = ("/", "/workloads", "/nodes", "/findings", "/policies", "/quotas", "/node?name=h100-2")


@pytest.fixture
def reader(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an account with the role in docs/console.md, and nothing else."""
    role = documented_role("docs/console.md")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} <= READ_VERBS
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(role))
    file = tmp_path / "reader.json"
    binding = bind_account(plane, namespace, role["metadata"]["name"], file)
    yield file
    plane.api.delete(binding)
    plane.api.delete(f"{RBAC}/clusterroles/{role['metadata']['name']}")


def console_process(kubeconfig: Path, folder: Path, name: str, *flags: str) -> tuple[Process, str]:
    """Return a console that is not started, and its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "tests.console.connection_log", str(folder / f"{name}.connections"), "ui"]
    command += ["--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{port}", *flags]
    return Process(name, command, folder / f"{name}.log", lambda: page(f"{url}/")), url


@pytest.fixture
def console(plane: Plane, nodes: list[str], reader: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a console for that account."""
    process, url = console_process(reader, tmp_path, "console", "--prometheus", "none")
    process.start()
    yield url
    process.stop()


@pytest.fixture
def island(plane: Plane, nodes: list[str]) -> Iterator[str]:
    """The name of a node with eight GPUs whose agent reports that NVLink connects four of them."""
    if not plane.api.exists(f"{DEFINITIONS}/gpunodes.rightslice.dev"):
        plane.api.create(DEFINITIONS, gpunode_crd())
    eventually(lambda: is_served(plane, GPUNODES))
    name = "h100-2"
    found = gpu_node_report(name, 8, {(i, j): 2 for j in range(4) for i in range(j)})
    plane.api.create(GPUNODES, {key: found[key] for key in ("apiVersion", "kind", "metadata")})
    plane.api.patch(f"{GPUNODES}/{name}/status", {"status": found["status"]}, "merge")
    yield name
    plane.api.delete(f"{GPUNODES}/{name}")


def page(url: str) -> str:
    """Return a page.

    Raises:
        OSError: There is none; its status is not 200.
    """
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_pages_follow_pods_that_come_and_go(plane: Plane, namespace: str, console: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    assert namespace not in page(f"{console}/workloads")
    plane.api.create(pods, make_pod("visitor").namespace(namespace).gpus(1).build())
    eventually(lambda: page(f"{console}/workloads?namespace={namespace}"), until=lambda text: "visitor" in text)
    plane.api.delete(f"{pods}/visitor")
    eventually(lambda: page(f"{console}/workloads?namespace={namespace}"), until=lambda text: "visitor" not in text)


def test_an_account_that_can_only_read_sees_what_an_administrator_sees(
    plane: Plane, console: str, nodes: list[str], island: str, tmp_path: Path
) -> None:
    admin, url = console_process(plane.kubeconfig, tmp_path, "admin", "--prometheus", "none")
    admin.start()
    seen = words_of_pages(url)
    eventually(lambda: words_of_pages(console), until=lambda words: words == seen)
    assert {node for node in nodes if node not in seen["/nodes"]} == {"cpu-1"}, "it has no GPUs"
    admin.stop()


def words_of_pages(url: str) -> dict[str, str]:
    """Return what a reader sees of each page."""
    return {path: page_words(page(f"{url}{path}")) for path in PATHS}


def test_the_islands_are_those_that_an_agent_reports(console: str, island: str) -> None:
    """Without the report, NVLink is assumed to connect all eight GPUs of the product."""
    link = f"/node?name={island}"
    measured = "as the node's agent reports them. Connected directly or through other GPUs: 0,1,2,3 ."
    eventually(lambda: page_words(page(f"{console}{link}")), until=lambda words: measured in words)
    assert link in page(f"{console}/nodes?island=4")
    assert link not in page(f"{console}/nodes?island=8")


def test_a_console_connects_to_the_api_server_and_to_prometheus_only(
    plane: Plane, nodes: list[str], reader: Path, tmp_path: Path
) -> None:
    """Over two readings of the cluster, while each page is requested."""
    with serve_answer(fake_prometheus()) as prometheus:
        process, url = console_process(reader, tmp_path, "console", "--prometheus", prometheus)
        process.start()
        first = read_at(page(url))
        for path in (*PATHS, "/layout"):
            page(f"{url}{path}")
        eventually(lambda: read_at(page(url)), until=lambda moment: moment != first)
        process.stop()

    lines = (tmp_path / "console.connections").read_text(encoding="utf-8").splitlines()
    known = {each.partition("//")[2] for each in (plane.url, prometheus)}
    assert {line for line in lines if not line.startswith("resolve ")} == {f"connect {each}" for each in known}
    assert {line for line in lines if line.partition(" ")[2] not in known} == set()


def read_at(text: str) -> str:
    """Return the time of the reading that a page shows."""
    (moment,) = re.findall(r"As of ([^,]*),", unescape(text))
    return str(moment)


def test_pages_say_that_the_cluster_does_not_answer_and_recover(plane_to_disrupt: Plane, tmp_path: Path) -> None:
    process, url = console_process(plane_to_disrupt.kubeconfig, tmp_path, "console", "--prometheus", "none")
    process.start()
    plane_to_disrupt.apiserver.kill()
    eventually(lambda: page(url), until=lambda text: "Not current" in text)
    plane_to_disrupt.apiserver.start()
    eventually(lambda: page(url), until=lambda text: "Not current" not in text)
    process.stop()
