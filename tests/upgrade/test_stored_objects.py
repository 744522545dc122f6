"""Objects that the first release and the commits before it wrote: read, converted, or reported with what to do."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.certs.make_certificates import make_state
from tests.cli.conftest import Run
from tests.conftest import ROOT
from tests.installing.test_doctor import HEALTHY
from tests.installing.test_doctor import NOW as DOCTOR_NOW
from webhook.certs.secret_state import SecretName, build_secret, secret_state_of
from webhook.cli.commands.doctor import diagnose
from webhook.installing.facts import CheckState
from webhook.model.annotations import DECISION_ANNOTATION, parse_decision_record
from webhook.model.gpu_node import GPUNode
from webhook.model.quota_escrow import EscrowEntry
from webhook.policy.loader import load_policies
from webhook.server.escrow_keeper import ESCROWS_ANNOTATION

Json = dict[str, Any]
FILES = Path(__file__).with_name("files")
SECRET_KEYS = {"ca.crt", "ca.key", "tls.crt", "tls.key"}


def stored(name: str) -> Json:
    """Return a stored object."""
    found: Json = yaml.safe_load((FILES / name).read_text(encoding="utf-8"))
    return found


def keys_of(value: Any, at: str = "") -> set[str]:
    """Return the paths of all keys in plain data; members of a list have one path."""
    if isinstance(value, (list, tuple)):
        return {path for each in value for path in keys_of(each, at)}
    if not isinstance(value, dict):
        return set()
    return {f"{at}.{key}" for key in value}.union(*(keys_of(each, f"{at}.{key}") for key, each in value.items()))


@pytest.mark.parametrize("version", ["first", "former"])
def test_undo_prints_what_a_pod_of_that_version_requested(version: str, rightslice: Run) -> None:
    ran = rightslice("undo", "-f", str(FILES / version / "pod.yaml"))

    assert ran.code == 0, ran.err
    assert yaml.safe_load(ran.out)["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("version", ["first", "former"])
def test_the_record_of_that_version_has_the_same_values(version: str) -> None:
    record = parse_decision_record(stored(f"{version}/pod.yaml")["metadata"]["annotations"][DECISION_ANNOTATION])

    assert record is not None
    assert (record.resource, record.gpu_milli) == ("nvidia.com/mig-1g.10gb", 143)
    assert record.changing_policies == ("right-sizing",)


def test_the_report_of_an_agent_is_read() -> None:
    node = msgspec.convert(stored("first/gpunode.yaml"), GPUNode)

    [gpu] = node.status.gpus
    assert (node.status.driver_version, gpu.memory_mib, gpu.nvlink_degraded) == ("580.95.05", 81920, True)
    assert (gpu.conditions, gpu.links[0].pcie_path, gpu.pods) == (
        ("NVLink 3 is down",),
        "SYS",
        ("team-vision/trainer",),
    )


def test_doctor_says_to_update_agents_from_before_the_first_release() -> None:
    def results(name: str) -> list[str]:
        found = diagnose(replace(HEALTHY, agents=[stored(name)]), DOCTOR_NOW)
        return [each.advice for each in found if each.state is CheckState.WARN and "before 0.1" in each.summary]

    assert results("first/gpunode.yaml") == []
    assert results("former/gpunode.yaml") == [
        "update the agents: kubectl -n rightslice-agent rollout restart daemonset/rightslice-agent"
    ]


def test_a_policy_is_read_and_a_renamed_field_is_named() -> None:
    first = load_policies([("first.yaml", (FILES / "first/policy.yaml").read_text())])
    former = load_policies([("former.yaml", (FILES / "former/policy.yaml").read_text())])

    assert first.errors == ()
    [error] = former.errors
    assert str(error).endswith("found 'others'. It was renamed. Write defaultWeight")


def test_a_renamed_flag_is_named(rightslice: Run) -> None:
    assert "unknown flag: --policy. It was renamed. Write --strategy" in rightslice("place", "--policy", "spread").err


def test_the_escrows_of_replicas_are_read() -> None:
    record = stored("first/lease.yaml")["metadata"]["annotations"][ESCROWS_ANNOTATION]
    one, other = msgspec.json.decode(record, type=dict[str, EscrowEntry]).values()

    assert one == EscrowEntry(41, 9817, {"shared/vision": 3000}, {"shared/vision": (2, 1000)})
    assert other == EscrowEntry(7, released=True)


def test_the_secret_has_the_keys_and_labels_of_the_first_release() -> None:
    secret = build_secret(make_state(), SecretName("rightslice-system", "rightslice-tls"), None)

    assert secret["data"].keys() == SECRET_KEYS
    assert secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "rightslice"}
    state = secret_state_of(secret)
    assert state is not None
    assert (state.errors, state.bundle) == ((), b64decode(secret["data"]["ca.crt"]))


def test_the_first_release_finds_its_keys_in_what_is_written_now() -> None:
    """It ignores keys that it does not know, so more are allowed."""
    entry = EscrowEntry(1, 2, {"q": 1}, {"q": (1, 2)}, released=True)
    lease = json.loads(stored("first/lease.yaml")["metadata"]["annotations"][ESCROWS_ANNOTATION])
    node = msgspec.to_builtins(msgspec.convert(stored("first/gpunode.yaml"), GPUNode))

    assert {key for each in lease.values() for key in each} <= set(msgspec.to_builtins(entry))
    assert keys_of(stored("first/gpunode.yaml")["status"]) <= keys_of(node["status"])


def test_the_first_release_finds_its_keys_in_the_record_written_now(rightslice: Run) -> None:
    pod = str(ROOT / "examples/pods/01-notebook-8gb.yaml")
    checked = rightslice("explain", "-f", pod, "--cluster", "demo")
    [line] = [line for line in checked.out.splitlines() if f"['{DECISION_ANNOTATION}']: " in line]
    written = json.loads(line.partition("]: ")[2])
    first = json.loads(stored("first/pod.yaml")["metadata"]["annotations"][DECISION_ANNOTATION])

    assert set(first) <= set(written)
    assert parse_decision_record(json.dumps(written)) is not None
