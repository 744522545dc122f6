"""Running out of cluster as in docs/install.md, and removing it again."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cluster.client import RefusedError
from tests.cluster.installation import ALL_MANIFESTS, documented_commands, install_from_page
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_crds import is_served
from tests.policy.policy_texts import exception_text
from webhook.audit.cluster_reader import ClusterReader
from webhook.cli.commands.doctor import diagnose
from webhook.cli.inputs import load_cluster_policies
from webhook.installing.facts import CheckState, ClusterFacts, read_cluster_facts
from webhook.kube.api import KubeClient
from webhook.manifests.objects import api_path
from webhook.well_known import SYSTEM_NAMESPACE


def rejection_message(plane: Plane, namespace: str) -> str:
    """Return the message that rejects a privileged GPU pod; "" if it is accepted."""
    pod = make_pod("greedy").namespace(namespace).gpus(1)
    pod.main["securityContext"] = {"privileged": True}
    try:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build(), dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("mode", "expected"), [("enforce", "privileged must be false in a pod that uses GPUs"), ("audit", "")]
)
def test_the_commands_of_the_page_work(plane: Plane, namespace: str, tmp_path: Path, mode: str, expected: str) -> None:
    apply, serve = documented_commands()
    assert (apply[0], serve[:3]) == ("kubectl", ["rightslice", "serve", "webhook"])

    with install_from_page(plane, tmp_path, f"--mode={mode}"):
        eventually(
            lambda: rejection_message(plane, namespace),
            until=lambda message: expected in message and bool(message) is bool(expected),
        )

    assert not [item for item in ALL_MANIFESTS if plane.api.exists(api_path(item))]
    eventually(lambda: rejection_message(plane, namespace), until=lambda message: not message)


async def facts_of(plane: Plane) -> ClusterFacts:
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        return await read_cluster_facts(api)


def test_commands_use_the_status_for_policies_in_server_files(
    plane: Plane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exception = json.loads(exception_text("of-a-file", policyName="guard"))
    exception["metadata"]["namespace"] = SYSTEM_NAMESPACE

    def run_doctor() -> dict[str, CheckState]:
        return {line.summary: line.state for line in diagnose(asyncio.run(facts_of(plane)), datetime.now(UTC))}

    with install_from_page(plane, tmp_path):
        eventually(lambda: is_served(plane, exceptions_in(SYSTEM_NAMESPACE)))
        plane.api.create(exceptions_in(SYSTEM_NAMESPACE), exception)
        lines = eventually(run_doctor, until=lambda found: "GPUPolicyException of-a-file is in use" in found)
        with ClusterReader(str(plane.kubeconfig)) as cluster:
            load_cluster_policies(cluster, None, SYSTEM_NAMESPACE)

    assert lines["policy files of a server outside the cluster are unknown"] is CheckState.SKIP
    assert lines["the backstop denies"] is CheckState.OK
    assert not [summary for summary, state in lines.items() if state is CheckState.FAIL]
    assert "/of-a-file is in use according to its status, but is not evaluated here" in (
        stderr := capsys.readouterr().err
    )
    assert "not in use" not in stderr


def exceptions_in(namespace: str) -> str:
    return f"/apis/rightslice.dev/v1alpha1/namespaces/{namespace}/gpupolicyexceptions"
