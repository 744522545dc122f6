"""`serve webhook` with a Prometheus: usage changes decisions, and a broken Prometheus delays nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders import make_pod
from tests.cluster.polling import eventually
from tests.server.site import TlsConnection, encoded, http, post, review
from tests.server.test_process import Process, running
from tests.usage import hostile_servers
from tests.usage.fleets import Use, dcgm, owner_samples
from tests.usage.hostile_servers import Answer, fixed_answer, serve_answer
from tests.usage.prometheus import PrometheusServer, now
from webhook.cli.main import build_app_for

OBSERVED = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: size}
spec:
  mode: enforce
  rightSizing: {isolation: hardware, forms: [mig], evidence: [observed], marginPercent: 15}
  injection: {tolerations: auto, nodeAffinity: auto}
"""

SERVE = ["--drain-seconds", "0", "--usage-minutes", "0.1"]
HOURS = 20
"""Length of the recorded usage: enough windows for an estimate."""


def pod() -> dict[str, Any]:
    """Return a new pod of the Deployment with known usage."""
    made = make_pod().gpus(1).build()
    made["metadata"] |= {
        "labels": {"pod-template-hash": "5d4f"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-5d4f", "controller": True}],
    }
    made["spec"]["containers"][0]["name"] = "main"
    return made


def send_request(process: Process, request: bytes) -> bytes:
    """Send a request; return the body of the answer."""
    connection = TlsConnection(process.port)
    connection.send(request)
    answer = connection.read()
    assert answer is not None
    return answer.body


def wait_for_log(process: Process, event: str) -> dict[str, Any]:
    """Return the first log line with this event. The low priority of the worker may make this slow."""

    def lines() -> list[dict[str, Any]]:
        assert process.popen.poll() is None
        return [json.loads(line) for line in process.lines if f'"event":"{event}"' in line]

    return eventually(lines)[0]


def patch(process: Process, namespace: str) -> list[dict[str, Any]]:
    """Return the patch of /mutate for the new pod."""
    body = encoded(review(pod(), namespace=namespace))
    response = json.loads(send_request(process, post("/mutate", body)))["response"]
    assert response["allowed"]
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def usage_line(process: Process) -> str:
    """Return the usage line of /readyz?verbose."""
    lines = send_request(process, http("GET", "/readyz?verbose")).decode().splitlines()
    assert lines[-1] == "ready"
    return next(line for line in lines if "]usage" in line)


def feed_usage(prometheus: PrometheusServer) -> str:
    """Feed the usage of a Deployment that used 3 of 40 GiB for a day; return the selector."""
    end = now()
    pods = [f"serve-5d4f-{i}" for i in range(4)]
    gpus = dcgm([Use(name, [3000] * 12 * HOURS, engine=0.1, capacity=40_000, namespace="ml") for name in pods], end)
    chain = [("ReplicaSet", "serve-5d4f"), ("Deployment", "serve")]
    return prometheus.feed(
        {"dcgm": gpus, "ksm": [sample for name in pods for sample in owner_samples(name, chain, end)]}
    )


def test_pod_is_sized_by_the_usage_of_its_workload(prometheus: PrometheusServer, tmp_path: Path) -> None:
    selector = feed_usage(prometheus)
    (tmp_path / "size.yaml").write_text(OBSERVED)
    flags = ["--prometheus", prometheus.url, "--prometheus-selector", selector, "--prometheus-days", "1"]
    with running(tmp_path, "--policies", str(tmp_path / "size.yaml"), *SERVE, *flags) as process:
        loaded = wait_for_log(process, "usage loaded")
        sized = patch(process, "ml")
        other = patch(process, "other")

    assert (loaded["containers"], loaded["pods"]) == (1, 4)
    assert "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb" in json.dumps(sized)
    assert "windows of 4 h of its workload" in json.dumps(sized)
    assert "MIG" not in json.dumps(other)


def test_pod_is_sized_by_a_recorded_file(prometheus: PrometheusServer, tmp_path: Path) -> None:
    selector, file = feed_usage(prometheus), tmp_path / "use.json.gz"
    flags = ["--prometheus", prometheus.url, "--prometheus-selector", selector, "--prometheus-days", "1"]
    assert build_app_for(["usage"])(["usage", "record", *flags, "--file", str(file)], standalone_mode=False) in (
        None,
        0,
    )
    (tmp_path / "size.yaml").write_text(OBSERVED)
    with running(tmp_path, "--policies", str(tmp_path / "size.yaml"), *SERVE, "--usage", str(file)) as process:
        wait_for_log(process, "usage loaded")

        assert usage_line(process).startswith("[+]usage 1 container of 4 pods, ")
        assert "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb" in json.dumps(patch(process, "ml"))
        metrics = send_request(process, http("GET", "/metrics")).decode()

    assert 'rightslice_usage_loads_total{result="success"}' in metrics
    assert "rightslice_usage_age_seconds" in metrics


BROKEN_SERVERS: dict[str, tuple[Answer, str]] = {
    "answers with HTML": (fixed_answer("<html>", "text/html"), "must answer with JSON, found text/html"),
    "answers without end": (hostile_servers.endless_answer, "must answer with at most 64 MiB, found more"),
}


@pytest.mark.parametrize(("answer", "word"), BROKEN_SERVERS.values(), ids=BROKEN_SERVERS)
def test_reviews_are_answered_with_a_broken_prometheus(tmp_path: Path, answer: Answer, word: str) -> None:
    with serve_answer(answer) as url, running(tmp_path, *SERVE, "--prometheus", url) as process:
        assert patch(process, "ml") == []
        assert usage_line(process).startswith("[-]usage")
        failure = wait_for_log(process, "usage not loaded")
        assert word in str(failure["error"])
        assert patch(process, "ml") == []
        assert eventually(lambda: word in usage_line(process))


def test_reviews_are_answered_while_prometheus_hangs(tmp_path: Path) -> None:
    """A stopping server does not wait for Prometheus either."""
    with serve_answer(hostile_servers.never_answer) as url, running(tmp_path, *SERVE, "--prometheus", url) as process:
        assert patch(process, "ml") == []
        assert usage_line(process) == "[-]usage not loaded yet"
        process.popen.terminate()
        assert process.end() == 0


INVALID_SETTINGS = {
    "no URL": (["--prometheus", "prometheus:9090"], "must be an http or https URL, found 'prometheus:9090'"),
    "a file and a Prometheus": (
        ["--prometheus", "http://a", "--usage", "b"],
        "--usage and --prometheus: must not be used together",
    ),
    "a user without a password": (["--prometheus", "http://a", "--prometheus-user", "ana"], "must be given together"),
    "zero days": (["--prometheus", "http://a", "--prometheus-days", "0"], "--prometheus-days: must be greater"),
}


@pytest.mark.parametrize(("flags", "word"), INVALID_SETTINGS.values(), ids=INVALID_SETTINGS)
def test_invalid_settings_are_reported_at_startup(tmp_path: Path, flags: list[str], word: str) -> None:
    with running(tmp_path, *flags) as process:
        assert process.end() == 2

    assert any(word in line for line in process.lines)
