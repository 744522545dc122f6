"""Commands on a live cluster find its Prometheus, and read usage from it through the API server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.builders import make_pod
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import free_port
from tests.cluster.proxy import serve_proxy
from tests.cluster.test_commands import rightslice
from tests.cluster.test_crds import is_served
from tests.controlplane.build import prometheus_program
from tests.usage.fleets import Use, dcgm, owner_samples
from tests.usage.prometheus import PrometheusServer, now

LABELS = {"app": "kube-prometheus-stack-prometheus"}
PORT = 9090


def machine_address() -> str:
    """Return an address of this machine that an EndpointSlice may contain: not of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


def create_server_pod(plane: Plane, namespace: str, address: str) -> None:
    """Create a pod with an address: the proxy of the API server connects to addresses of pods only."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, make_pod("prometheus-0").namespace(namespace).spec(schedulerName="none").build())
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    plane.api.patch(f"{path}/prometheus-0/status", status)


@pytest.fixture
def service(plane: Plane, namespace: str, prometheus: PrometheusServer) -> Iterator[str]:
    """Create the Service of a Prometheus; return its name for people."""
    with serve_in_cluster(plane, namespace, prometheus, LABELS) as label:
        yield label


@contextmanager
def serve_in_cluster(
    plane: Plane, namespace: str, prometheus: PrometheusServer, labels: Mapping[str, str]
) -> Iterator[str]:
    """Create a Service with these labels within the block; return its name for people."""
    url = urlsplit(prometheus.url)
    address, port = machine_address(), url.port or 0
    listening = free_port()
    with serve_proxy(listening, [port], address):
        spec = {"ports": [{"name": "http-web", "port": PORT, "targetPort": listening}]}
        metadata = {"name": "prometheus", "namespace": namespace}
        service = {"metadata": {**metadata, "labels": dict(labels)}, "spec": spec}
        plane.api.create(f"/api/v1/namespaces/{namespace}/services", service)
        create_server_pod(plane, namespace, address)
        target = {"kind": "Pod", "name": "prometheus-0", "namespace": namespace}
        subset = {
            "addresses": [{"ip": address, "targetRef": target}],
            "ports": [{"name": "http-web", "port": listening}],
        }
        plane.api.create(f"/api/v1/namespaces/{namespace}/endpoints", {"metadata": metadata, "subsets": [subset]})
        # From Kubernetes 1.37 on, the proxy of the API server reads EndpointSlices instead.
        endpoints = {
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "prometheus"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "targetRef": target}],
            "ports": [{"name": "http-web", "port": listening, "protocol": "TCP"}],
        }
        plane.api.create(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", endpoints)
        ready = f"/api/v1/namespaces/{namespace}/services/prometheus:{PORT}/proxy{url.path}/api/v1/status/buildinfo"
        eventually(lambda: is_served(plane, ready))  # the API server reads endpoints from a cache
        yield f"{namespace}/prometheus:{PORT}"
        plane.api.delete(f"/api/v1/namespaces/{namespace}/services/prometheus")


@pytest.fixture
def workload(plane: Plane, nodes: list[str], namespace: str, prometheus: PrometheusServer) -> str:
    """Run a pod that used 3 of 80 GiB for a day; return the workload."""
    return run_workload(plane, namespace, prometheus)


def run_workload(plane: Plane, namespace: str, prometheus: PrometheusServer) -> str:
    """Run a pod that used 3 of 80 GiB for a day, as this Prometheus knows; return the workload."""
    end, name = now(), "serve-0"
    gpus = dcgm([Use(name, [3000] * 240, engine=0.1, capacity=80_000, namespace=namespace)], end)
    prometheus.feed({"dcgm": gpus, "ksm": owner_samples(name, (), end, namespace=namespace)})
    on_nodes = {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    }
    pod = make_pod(name).namespace(namespace).gpus(1).spec(**on_nodes).build()
    pod["spec"]["containers"][0]["name"] = "main"
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, pod)
    eventually(lambda: plane.api.get(f"{path}/{name}")["spec"].get("nodeName"))
    return f"Pod/{name}"


@pytest.mark.parametrize("command", ["rightsize", "audit"])
def test_a_command_reads_usage_from_the_prometheus_of_the_cluster(
    plane: Plane, namespace: str, service: str, workload: str, command: str
) -> None:
    ran = rightslice(plane, command, "-o", "json")
    assert f"usage: Prometheus {service}, found by app=kube-prometheus-stack-prometheus" in ran.stderr, ran.stderr
    rows = [each for each in json.loads(ran.stdout)["workloads"] if each["namespace"] == namespace]
    assert [each["workload"] for each in rows] == [workload]
    if command == "audit":
        assert (rows[0]["idleUnknownMilli"], rows[0]["idle"]["milli"]) == (0, 0)
    else:
        assert rows[0]["containers"][0]["usedMemoryMiB"] == 3000, rows


SELECT = "/select/0/prometheus"


@pytest.fixture
def vmselect(tmp_path: Path) -> Iterator[PrometheusServer]:
    """A Prometheus that answers below the path of a VictoriaMetrics cluster."""
    server = PrometheusServer(prometheus_program(), tmp_path, [f"--web.route-prefix={SELECT}"])
    server.url += SELECT
    with server:
        yield server


@pytest.mark.usefixtures("nodes")
def test_usage_is_read_below_the_path_of_a_victoriametrics_cluster(
    plane: Plane, namespace: str, vmselect: PrometheusServer
) -> None:
    workload = run_workload(plane, namespace, vmselect)
    with serve_in_cluster(plane, namespace, vmselect, {"app": "vmselect"}) as label:
        ran = rightslice(plane, "rightsize", "-n", namespace, "-o", "json")

    assert f"usage: Prometheus {label}, found by app=vmselect" in ran.stderr, ran.stderr
    [row] = json.loads(ran.stdout)["workloads"]
    assert (row["workload"], row["containers"][0]["usedMemoryMiB"]) == (workload, 3000)


def test_a_cluster_without_a_prometheus_has_no_usage_and_says_so(plane: Plane, workload: str) -> None:
    ran = rightslice(plane, "rightsize", "-o", "json")
    assert ran.returncode == 0, ran.stderr
    assert "no Prometheus was found in the cluster. Name one: --prometheus URL, or --usage FILE" in ran.stderr
    assert workload in ran.stdout


def test_a_prometheus_that_does_not_answer_stops_no_command(plane: Plane, namespace: str) -> None:
    service = {
        "metadata": {"name": "prometheus-server", "labels": {"app": "prometheus-server"}},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    }
    services = f"/api/v1/namespaces/{namespace}/services"
    plane.api.create(services, service)
    ran = rightslice(plane, "audit", "-o", "json")
    plane.api.delete(f"{services}/prometheus-server")
    assert ran.returncode == 0, ran.stderr
    assert f"note: usage: {namespace}/prometheus-server:80, found by its labels, was not read: " in ran.stderr
