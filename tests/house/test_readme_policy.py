"""The policy in README.md has the described effects."""

from __future__ import annotations

import re
from typing import Any

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.example_cluster import (
    GPU_TAINT,
    NO_USAGE,
    NOW,
    apply_patch,
    mig_node,
    policies_of,
    request_of,
    tainted,
    view_of,
    whole_node,
)
from tests.house.checkout import read_checkout_file
from webhook.engine.decide import decide
from webhook.model.decisions import Decision

NODES = [tainted(whole_node(), GPU_TAINT), tainted(mig_node(), GPU_TAINT)]


def readme_policy() -> str:
    """Return the policy of the page."""
    shown: list[str] = re.findall(r"^```yaml\n(.*?)^```$", read_checkout_file("README.md"), re.MULTILINE | re.DOTALL)
    return shown[0]


def evaluate(pod: PodMaker, text: str, namespace: str = "team-vision") -> tuple[Json, Decision]:
    """Return a pod and the decision on it, in a cluster with whole cards and slices, all tainted."""
    data = pod.namespace(namespace).build()
    view = view_of(make_namespace(namespace), *NODES)
    return data, decide(request_of(data), policies_of(text), view, NO_USAGE, NOW)


def limits(pod: Json) -> dict[str, Any]:
    """Return the limits of the first container."""
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def test_three_gpus_are_denied_with_the_allowed_counts() -> None:
    _, decision = evaluate(make_pod().gpus(3), readme_policy())

    (denial,) = decision.denials
    assert denial.code == "GPU-L102"
    assert "1, 2, 4, 8" in str(denial)


def test_four_gpus_are_allowed() -> None:
    _, decision = evaluate(make_pod().gpus(4), readme_policy())

    assert decision.denials == ()


def test_a_small_pod_gets_a_warning_with_the_slice_and_keeps_its_gpu() -> None:
    data, decision = evaluate(make_pod().gpus(1).needs("8Gi"), readme_policy())

    (advice,) = [warning for warning in decision.warnings if warning.code == "GPU-R102"]
    assert "nvidia.com/mig-1g.10gb" in advice.message
    assert limits(apply_patch(data, decision)) == {"nvidia.com/gpu": "1"}


def test_with_mode_enforce_it_gets_the_slice() -> None:
    enforced = readme_policy().replace("mode: warn", "mode: enforce")
    data, decision = evaluate(make_pod().gpus(1).needs("8Gi"), enforced)

    assert limits(apply_patch(data, decision)) == {"nvidia.com/mig-1g.10gb": "1"}


def test_only_the_taints_of_its_nodes_are_tolerated() -> None:
    data, decision = evaluate(make_pod().gpus(1), readme_policy())

    (toleration,) = apply_patch(data, decision)["spec"]["tolerations"]
    assert (toleration["key"], toleration["effect"]) == (GPU_TAINT["key"], GPU_TAINT["effect"])


def test_it_does_not_apply_outside_the_namespaces_of_teams() -> None:
    _, decision = evaluate(make_pod().gpus(3), readme_policy(), namespace="batch")

    assert decision.policies == ()
    assert decision.denials == ()
    assert decision.patch == ()
