"""Changes made with kubectl take effect, without a restart."""

from __future__ import annotations

import json
from functools import partial

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.end_to_end.test_controllers import SELECTOR, workload
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually
from tests.policy.policy_texts import policy_text
from webhook.engine.linting import fix_object, lint_object


def rejection_message(site: Installation, pod: Json) -> str:
    """Return the message that rejects a pod; "" if it is accepted."""
    try:
        site.plane.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod, dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


def test_a_policy_is_created_changed_and_deleted_with_kubectl(site: Installation, team: str) -> None:
    four = make_pod("four").namespace(team).gpus(4).build()

    def apply(*allowed: int) -> None:
        limits = {"perPod": [{"resource": "nvidia.com/gpu", "allowed": list(allowed)}]}
        text = policy_text(team, mode="enforce", match={"namespaces": [team]}, limits=limits)
        site.plane.kubectl("apply", "-f", "-", stdin=text)

    assert rejection_message(site, four) == ""
    apply(1, 2)
    message = eventually(partial(rejection_message, site, four))
    assert f"(policy {team})" in message
    apply(1, 2, 4)
    eventually(partial(rejection_message, site, four), until=lambda message: not message)
    apply(1)
    eventually(partial(rejection_message, site, four))
    site.plane.kubectl("delete", "gpupolicy", team)
    eventually(partial(rejection_message, site, four), until=lambda message: not message)


def test_a_gpu_mixture_from_a_limit_range_names_the_limit_range(site: Installation, team: str) -> None:
    """The correction in the message works."""
    harmful = {
        "metadata": {"name": "trap"},
        "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]},
    }
    site.plane.api.create(f"/api/v1/namespaces/{team}/limitranges", harmful)
    pod = make_pod("slice").namespace(team).requests("nvidia.com/mig-1g.10gb", "1")

    message = eventually(
        partial(rejection_message, site, pod.build()), until=lambda message: "LimitRange 'trap'" in message
    )

    assert "[GPU-S307]" in message
    assert 'Write nvidia.com/gpu: "0" in its requests and limits.' in message
    assert rejection_message(site, pod.gpus(0).build()) == ""


def test_a_pod_that_a_default_makes_invalid_is_warned_with_the_limit_range(site: Installation, team: str) -> None:
    """The API server rejects it before it calls /validate, and its own message names no LimitRange."""
    spec = {"limits": [{"type": "Container", "default": {"memory": "512Mi"}, "defaultRequest": {"memory": "512Mi"}}]}
    site.plane.api.create(f"/api/v1/namespaces/{team}/limitranges", {"metadata": {"name": "trap"}, "spec": spec})
    pod = make_pod("larger").namespace(team).gpus(1).build()
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Gi"

    def output() -> str:
        create = ("create", "--dry-run=server", "-f", "-")
        return site.plane.kubectl(*create, stdin=json.dumps(pod), check=False).stderr

    printed = eventually(output, until=lambda text: "[GPU-L203]" in text)
    assert "LimitRange 'trap' gives memory a default limit" in printed
    assert "must be less than or equal to memory limit of 512Mi" in printed.partition("is invalid: ")[2]


def kubectl_warnings(site: Installation, manifest: Json) -> str:
    """Return the warnings that kubectl prints for a dry run."""
    return site.plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest)).stderr


HARMFUL_OBJECTS = {
    "GPU-L301": ("LimitRange", {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]}),
    "GPU-Q402": ("ResourceQuota", {"hard": {"requests.nvidia.com/gpu": "4"}}),
}


def test_a_harmful_limit_range_is_warned_about_and_accepted(site: Installation, team: str) -> None:
    for code, (kind, spec) in HARMFUL_OBJECTS.items():
        harmful = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "trap", "namespace": team}, "spec": spec}
        eventually(lambda: code in kubectl_warnings(site, harmful))  # noqa: B023 - called at once

        applied = site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(harmful))
        corrected = site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(fix_object(harmful, lint_object(harmful))))

        assert {line.partition("] ")[0] for line in applied.stderr.splitlines()} == {f"Warning: [{code}"}
        assert corrected.stderr == ""
        site.plane.kubectl("delete", kind.lower(), "trap", f"--namespace={team}")


def test_created_and_deleted_limit_ranges_and_quotas_take_effect(site: Installation, team: str) -> None:
    deployment = workload("Deployment", team, replicas=1, selector=SELECTOR)
    deployment["spec"]["template"]["metadata"]["annotations"] = {"rightslice.dev/keep": "true"}
    limits = {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "0"}, "default": {"nvidia.com/gpu": "0"}}]}
    cases = {
        "GPU-L": {"apiVersion": "v1", "kind": "LimitRange", "spec": limits},
        "GPU-Q": {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}},
    }
    for code, limit in cases.items():
        assert code not in kubectl_warnings(site, deployment)
        limit["metadata"] = {"name": "none", "namespace": team}
        site.plane.kubectl("create", "-f", "-", stdin=json.dumps(limit))
        eventually(lambda: code in kubectl_warnings(site, deployment))  # noqa: B023 - called at once
        site.plane.kubectl("delete", str(limit["kind"]).lower(), "none", f"--namespace={team}")
        eventually(lambda: code not in kubectl_warnings(site, deployment))  # noqa: B023 - the same
