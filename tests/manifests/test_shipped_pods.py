"""The shipped pods: privileges of the agent, pods that imitate it, hung replicas, timeouts and open ports."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.builders import Json, make_namespace
from tests.example_cluster import review, view_of, whole_node
from tests.house.checkout import read_checkout_file
from webhook.manifests.webhooks import webhook_configurations
from webhook.well_known import AGENT_NAMESPACE

GUARD = read_checkout_file("policies/guard.yaml")
MAX_UNREADY_SECONDS = 10
MAX_TIMEOUT_SECONDS = 3


def documents(name: str) -> list[Json]:
    return [each for each in yaml.safe_load_all(read_checkout_file(f"manifests/{name}")) if each]


def pod_spec(name: str) -> Json:
    [owner] = [each for each in documents(name) if each["kind"] in ("Deployment", "DaemonSet")]
    spec: Json = owner["spec"]["template"]["spec"]
    return spec


FIELD_OWNERS = (
    "agent/daemonset.yaml",
    "base/deployment.yaml",
    "scheduler/extender/deployment.yaml",
    "scheduler/second/deployment.yaml",
)


@pytest.mark.parametrize("name", FIELD_OWNERS)
def test_references_to_fields_are_stored_as_they_are_written(name: str) -> None:
    """A default that the API server adds to a list without keys is a conflict when another manager applies the list."""
    sources = [
        source for volume in pod_spec(name)["volumes"] for source in volume.get("projected", {}).get("sources", ())
    ]
    items = [item for source in sources for item in source.get("downwardAPI", {}).get("items", ())]

    assert [item["fieldRef"]["apiVersion"] for item in items] == ["v1"]


AGENT = pod_spec("agent/daemonset.yaml")
[AGENT_CONTAINER] = AGENT["containers"]


def test_the_agent_has_the_documented_privileges_and_no_others() -> None:
    context = dict(AGENT_CONTAINER["securityContext"])

    assert context.pop("capabilities") == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, "to read MIG placements"
    assert context == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "securityContext"} & AGENT.keys()
    assert [each["hostPath"]["path"] for each in AGENT["volumes"] if "hostPath" in each] == [
        "/var/lib/kubelet/pod-resources"
    ]
    assert all(mount["readOnly"] for mount in AGENT_CONTAINER["volumeMounts"])


def agent_like_pod(namespace: str, **without: Any) -> Json:
    """Return a pod with the agent's labels, image, variables and privileges."""
    [owner] = documents("agent/daemonset.yaml")
    metadata = {**owner["spec"]["template"]["metadata"], "name": "rightslice-agent-x1", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**AGENT, **without}}


IMITATIONS = {
    "all of it": {},
    "without its volumes": {"volumes": [], "containers": [{**AGENT_CONTAINER, "volumeMounts": []}]},
    "without its capabilities": {"containers": [{**AGENT_CONTAINER, "securityContext": {}}]},
    "in the name of its service account": {"serviceAccountName": "rightslice-agent"},
}


@pytest.mark.parametrize("fields", IMITATIONS.values(), ids=IMITATIONS)
def test_a_pod_that_imitates_the_agent_is_denied_outside_its_namespace(fields: Json) -> None:
    spec = yaml.safe_dump(yaml.safe_load(GUARD)["spec"] | {"mode": "enforce"})
    view = view_of(make_namespace("team"), make_namespace(AGENT_NAMESPACE), whole_node())
    decision = review(agent_like_pod("team", **fields), spec, view=view)

    assert "GPU-S101" in {finding.code for finding in decision.denials}


def test_a_hung_replica_is_no_endpoint_after_ten_seconds() -> None:
    [container] = pod_spec("base/deployment.yaml")["containers"]
    probe = container["readinessProbe"]

    period, failures = probe.get("periodSeconds", 10), probe.get("failureThreshold", 3)
    assert period * failures + probe.get("timeoutSeconds", 1) <= MAX_UNREADY_SECONDS


def test_a_call_of_ours_adds_at_most_three_seconds_to_those_of_other_webhooks() -> None:
    hooks = [hook for each in webhook_configurations() for hook in each["webhooks"]]
    mutating = [
        hook for each in webhook_configurations() if each["kind"].startswith("Mut") for hook in each["webhooks"]
    ]

    assert max(hook["timeoutSeconds"] for hook in hooks) <= MAX_TIMEOUT_SECONDS
    assert {hook["failurePolicy"] for hook in mutating} == {"Ignore"}, "one that times out delays a create and no more"


def test_only_the_webhooks_port_is_open_and_cloud_metadata_is_unreachable() -> None:
    [policy] = documents("base/networkpolicy.yaml")
    spec = policy["spec"]
    [container] = pod_spec("base/deployment.yaml")["containers"]

    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == [8443]
    assert {port["containerPort"] for port in container["ports"]} == {8443}, "metrics have no other port"
    blocks = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert [block.get("except") for block in blocks if block["cidr"] == "0.0.0.0/0"] == [["169.254.0.0/16"]]
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {443, 6443, 53, 5353}
