"""All processes of Rightslice on a real control plane, and a real Prometheus that scrapes them."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tests.builders import PodMaker, make_node, make_pod
from tests.cluster.client import RefusedError
from tests.cluster.installation import Installation, install_from_page, patch_webhooks, unverified_context
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.test_extender import serve_extender
from tests.conftest import ROOT
from tests.controlplane.build import prometheus_program
from tests.example_cluster import A100
from tests.extender.harness import extender_body
from tests.usage.fleets import Use, dcgm, owner_samples
from tests.usage.prometheus import Prometheus, PrometheusServer, now
from webhook.cli.processes.agent import AgentFlags
from webhook.well_known import AGENT_NAMESPACE, SYSTEM_NAMESPACE

INTERVAL = "3s"
"""Between two scrapes, and for each: that of the shipped monitor is too long for a test, and an API server on a busy
machine may need more than a second."""

TEAM = "monitored"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
AGENT_NODE = "monitored-agent"
OBSERVED = "serve-0"
"""A pod with recorded usage."""

H200 = A100 | {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}
UNPARTITIONED = make_node("monitored-h200", H200, **{"nvidia.com/gpu": 8})
"""A node whose cards could have larger slices than those of the example cluster."""

MEMORY = "rightslice.dev/gpu-memory"
FAIL_OPEN = "apiserver_admission_webhook_fail_open_count"


class MonitoredSite:
    """The running processes.

    Attributes:
        plane: The control plane.
        installation: The webhook.
        prometheus: Scrapes the webhook, the extender, an agent and the API server.
    """

    def __init__(self, plane: Plane, installation: Installation, extender: str, prometheus: Prometheus) -> None:
        self.plane, self.installation, self._extender, self.prometheus = plane, installation, extender, prometheus
        self._rounds = count()

    def send_load(self) -> None:
        """Create pods of every kind, let the extender rank nodes for some, and delete the pods."""
        number = next(self._rounds)
        for pod in pods_of_round(number):
            with suppress(RefusedError):
                self.plane.api.create(PODS, pod.namespace(TEAM).build())
        self._create_denied_job(number)
        self._send_rejected_request()
        for index in range(2):
            self._call_extender(make_pod(f"ranked-{number}-{index}").gpus(1 + index))
        self.plane.api.delete(PODS, gracePeriodSeconds="0")
        eventually(lambda: not self.plane.api.get(PODS)["items"])

    def fail_open(self) -> None:
        """Let the API server admit two pods while no replica answers, each seen by Prometheus."""
        shipped = patch_webhooks(self.plane, lambda hook: {**hook, "failurePolicy": "Ignore"})
        policies = {hook["name"]: hook["failurePolicy"] for hook in shipped}
        self.installation.replica.stop()
        for number in (1, 2):
            self.plane.api.create(PODS, make_pod(f"open-{number}").gpus(1).namespace(TEAM).build())
            self.wait_for(f"sum({FAIL_OPEN}) >= {number}")
        self.installation.replica.start()
        patch_webhooks(self.plane, lambda hook: {**hook, "failurePolicy": policies[hook["name"]]})
        eventually(self.installation.webhooks_answer)

    def wait_for(self, query: str) -> None:
        """Wait until a query has a result."""
        eventually(lambda: self.prometheus.instant_query(query))

    def _create_denied_job(self, number: int) -> None:
        """Create a Job whose pod is denied, so that the Job gets an Event."""
        template = {"spec": make_pod().gpus(3).build()["spec"] | {"restartPolicy": "Never"}}
        job = {"metadata": {"name": f"denied-{number}", "namespace": TEAM}, "spec": {"template": template}}
        self.plane.api.create(f"/apis/batch/v1/namespaces/{TEAM}/jobs", job)

    def _send_rejected_request(self) -> None:
        """Send a review that is no JSON."""
        url = f"https://127.0.0.1:{self.installation.port}/validate"
        request = urllib.request.Request(url, b"{", {"Content-Type": "application/json"})
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=60, context=unverified_context()).close()

    def _call_extender(self, pod: PodMaker) -> None:
        body = extender_body(pod, [node["metadata"]["name"] for node in demo_nodes()])
        for verb in ("filter", "prioritize"):
            request = urllib.request.Request(f"{self._extender}/{verb}", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60, context=unverified_context()) as answer:
                answer.read()


def pods_of_round(number: int) -> Iterator[PodMaker]:
    """Yield pods that are right-sized, kept for several reasons, warned about and denied."""
    for index in range(2 + number % 3):
        yield make_pod(f"declared-{index}").gpus(1).annotate(MEMORY, "8Gi")
    yield make_pod("without-slice").gpus(1).annotate(MEMORY, "45Gi")
    yield make_pod("without-evidence").gpus(1)
    yield make_pod("kept").gpus(1).annotate("rightslice.dev/keep", "true")
    yield make_pod("three").gpus(3)
    yield make_pod("bypass").env("NVIDIA_VISIBLE_DEVICES", "all")
    yield named_container(make_pod(OBSERVED).gpus(1))


def named_container(pod: PodMaker) -> PodMaker:
    """Return the pod with the container name of the recorded usage."""
    pod.build()["spec"]["containers"][0]["name"] = "main"
    return pod


@contextmanager
def run_monitored_site(plane: Plane, folder: Path, usage: PrometheusServer) -> Iterator[MonitoredSite]:
    """Run everything for the block.

    Args:
        plane: A control plane without webhooks.
        folder: For files of the processes.
        usage: Gets the usage of a pod, which the webhook reads.
    """
    feed_usage(usage)
    nodes = add_nodes(plane, [*demo_nodes(), make_node(AGENT_NODE, {}, cpu=8), UNPARTITIONED])
    flags = (f"--prometheus={usage.url}", "--replicas=1")
    try:
        with install_from_page(plane, folder, *flags) as installation:
            plane.add_namespace(TEAM, {"rightslice.dev/right-sizing": "enforced"})
            with (
                serve_extender(plane, folder) as (_, entry),
                plane.namespace_called(AGENT_NAMESPACE),
                serve_agent(plane, folder) as agent,
            ):
                targets = {
                    "rightslice": (f"127.0.0.1:{installation.port}", "https"),
                    "rightslice-extender": (entry["urlPrefix"].removeprefix("https://"), "https"),
                    "rightslice-agent": (agent, "http"),
                }
                with scrape(plane, folder, targets) as prometheus:
                    yield MonitoredSite(plane, installation, entry["urlPrefix"], prometheus)
    finally:
        plane.api.delete(f"/api/v1/namespaces/{TEAM}")
        remove_nodes(plane, nodes)


def feed_usage(usage: PrometheusServer) -> None:
    """Record that a pod used 3 of 80 GiB for a week."""
    end = now()
    used = dcgm([Use(OBSERVED, [3000] * 1680, engine=0.1, capacity=80_000, namespace=TEAM)], end)
    usage.feed({"dcgm": used, "ksm": owner_samples(OBSERVED, (), end, namespace=TEAM)})


@contextmanager
def serve_agent(plane: Plane, folder: Path) -> Iterator[str]:
    """Run an agent on a scripted machine, and yield its address."""
    port = free_port()
    flags = AgentFlags(
        AGENT_NODE, str(plane.kubeconfig), None, "127.0.0.1", port, str(folder / "kubelet.sock"), 1.0, False, "info"
    )
    command = [sys.executable, "-m", "tests.agent.scripted_process", msgspec.json.encode(flags).decode(), TEAM, "p"]
    environment = ["/usr/bin/env", f"PYTHONPATH={ROOT}", "PATH=" + os.environ["PATH"]]

    def ready() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return bool(answer.status == 200)

    process = Process("agent", [*environment, *command], folder / "agent.log", ready)
    process.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()


@contextmanager
def scrape(plane: Plane, folder: Path, targets: Mapping[str, tuple[str, str]]) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these processes (address and scheme by job), and the API server."""
    labels = {"namespace": SYSTEM_NAMESPACE}
    more = {"rightslice-agent": {"instance": AGENT_NODE}}  # as the shipped PodMonitor labels an agent
    insecure = {"tls_config": {"insecure_skip_verify": True}}
    jobs: list[dict[str, Any]] = []
    for job, (address, scheme) in targets.items():
        target = {"targets": [address], "labels": labels | more.get(job, {})}
        jobs.append({"job_name": job, "scheme": scheme, **insecure, "static_configs": [target]})
    apiserver = plane.url.removeprefix("https://")
    token = {"authorization": {"credentials": plane.token}}
    jobs.append(
        {"job_name": "apiserver", "scheme": "https", **insecure, **token, "static_configs": [{"targets": [apiserver]}]}
    )
    config = {"global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL}, "scrape_configs": jobs}
    (folder / "prometheus").mkdir()
    with Prometheus(prometheus_program(), folder / "prometheus", config) as prometheus:
        eventually(lambda: len(prometheus.instant_query("up == 1")) == len(jobs))
        yield prometheus
