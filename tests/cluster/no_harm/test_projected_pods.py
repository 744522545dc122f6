"""Warnings for a workload match the decisions for its pods, also if a pod label decides."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from functools import partial

import pytest

from tests.cluster.end_to_end.test_controllers import SELECTOR, workload
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import GPU, RIGHT_SIZED
from tests.cluster.polling import eventually
from tests.policy.policy_texts import policy_text


@pytest.fixture
def spread_namespace(sizing: Installation) -> Iterator[str]:
    """A namespace whose pods are right-sized and must be spread over hosts."""
    plane, name = sizing.plane, f"spread-{secrets.token_hex(3)}"
    plane.add_namespace(name, RIGHT_SIZED)
    rules = {"match": {"namespaces": [name]}, "injection": {"spread": "required"}}
    plane.kubectl("apply", "-f", "-", stdin=policy_text(name, mode="enforce", **rules))
    yield name
    plane.kubectl("delete", "gpupolicy", name)
    plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_workload_warnings_match_the_pods_with_spread_constraints(
    sizing: Installation, spread_namespace: str, kind: str
) -> None:
    kubectl, manifest = (
        sizing.plane.kubectl,
        json.dumps(workload(kind, spread_namespace, replicas=1, selector=SELECTOR)),
    )
    dry_run = partial(kubectl, "create", "--dry-run=server", "-f", "-", stdin=manifest)
    eventually(lambda: "[GPU-R103]" in dry_run().stderr)

    assert "[GPU-R101]" not in kubectl("apply", "-f", "-", stdin=manifest).stderr
    (pod,) = eventually(lambda: sizing.plane.api.get(f"/api/v1/namespaces/{spread_namespace}/pods")["items"])
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
