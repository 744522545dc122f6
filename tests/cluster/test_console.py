"""The console over a real cluster, for an account that can only read it: pods come and go, and pages follow."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.builders import make_pod
from tests.cluster.accounts import RBAC, bind_account
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.house.checkout import read_checkout_file

NAME = "rightslice-console-test"
READ_VERBS = {"get", "list", "watch"}
PATHS = ("/", "/workloads", "/nodes", "/findings", "/policies", "/quotas")


@pytest.fixture
def reader(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an account with what the role in docs/audit.md may read, and nothing else."""
    (text,) = re.findall(r"```yaml\n(apiVersion: rbac[^`]*ClusterRole\n[^`]*)```", read_checkout_file("docs/audit.md"))
    rules = [{**rule, "verbs": sorted(READ_VERBS & set(rule["verbs"]))} for rule in yaml.safe_load(text)["rules"]]
    plane.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": NAME}, "rules": rules})
    file = tmp_path / "reader.json"
    binding = bind_account(plane, namespace, NAME, file)
    yield file
    plane.api.delete(binding)
    plane.api.delete(f"{RBAC}/clusterroles/{NAME}")


@pytest.fixture
def console(plane: Plane, nodes: list[str], reader: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a console for that account."""
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "ui", "--kubeconfig", str(reader), "--prometheus", "none"]
    url = f"http://127.0.0.1:{port}"
    process = Process(
        "console", [*command, "--listen", f"127.0.0.1:{port}"], tmp_path / "console.log", lambda: page(f"{url}/")
    )
    process.start()
    yield url
    process.stop()


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


def test_an_account_that_can_only_read_sees_every_page(console: str, nodes: list[str]) -> None:
    texts = {path: page(f"{console}{path}") for path in PATHS}
    assert [path for path, text in texts.items() if "forbidden" in text.lower()] == []
    assert {node for node in nodes if node not in texts["/nodes"]} == {"cpu-1"}, "it has no GPUs"


def test_pages_say_that_the_cluster_does_not_answer_and_recover(plane_to_disrupt: Plane, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "ui", "--kubeconfig", str(plane_to_disrupt.kubeconfig)]
    listen = ["--prometheus", "none", "--listen", f"127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}/"
    process = Process("console", [*command, *listen], tmp_path / "console.log", lambda: page(url))
    process.start()
    plane_to_disrupt.apiserver.kill()
    eventually(lambda: page(url), until=lambda text: "Not current" in text)
    plane_to_disrupt.apiserver.start()
    eventually(lambda: page(url), until=lambda text: "Not current" not in text)
    process.stop()
