"""The policy in README.md does what the text beside it says."""

from __future__ import annotations

import re
from typing import Any

from tests.house.checkout import read
from tests.make import Json, PodMaker, make_namespace, make_pod
from tests.world import (
    GPU_TAINT,
    NO_USAGE,
    NOW,
    mig_node,
    policies_of,
    request_of,
    shaped,
    tainted,
    view_of,
    whole_node,
)
from webhook.engine.decide import decide
from webhook.model.decisions import Decision

NODES = [tainted(whole_node(), GPU_TAINT), tainted(mig_node(), GPU_TAINT)]


def readme_policy() -> str:
    """The policy as it stands in the page."""
    shown: list[str] = re.findall(r"^```yaml\n(.*?)^```$", read("README.md"), re.MULTILINE | re.DOTALL)
    return shown[0]


def judged(pod: PodMaker, text: str, namespace: str = "team-vision") -> tuple[Json, Decision]:
    """The pod and what becomes of it, in a cluster with whole cards and with slices, all tainted."""
    data = pod.namespace(namespace).build()
    view = view_of(make_namespace(namespace), *NODES)
    return data, decide(request_of(data), policies_of(text), view, NO_USAGE, NOW)


def limits(pod: Json) -> dict[str, Any]:
    """What the first container is limited to."""
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def test_three_gpus_are_refused_with_the_numbers_that_would_pass() -> None:
    _, decision = judged(make_pod().gpus(3), readme_policy())

    (denial,) = decision.denials
    assert denial.code == "GPU-L102"
    assert "1, 2, 4, 8" in str(denial)


def test_four_gpus_pass() -> None:
    _, decision = judged(make_pod().gpus(4), readme_policy())

    assert decision.denials == ()


def test_a_small_pod_is_told_which_slice_would_do_and_keeps_its_gpu() -> None:
    data, decision = judged(make_pod().gpus(1).needs("8Gi"), readme_policy())

    (advice,) = [warning for warning in decision.warnings if warning.code == "GPU-R102"]
    assert "nvidia.com/mig-1g.10gb" in advice.message
    assert limits(shaped(data, decision)) == {"nvidia.com/gpu": "1"}


def test_with_mode_enforce_it_gets_the_slice() -> None:
    enforced = readme_policy().replace("mode: warn", "mode: enforce")
    data, decision = judged(make_pod().gpus(1).needs("8Gi"), enforced)

    assert limits(shaped(data, decision)) == {"nvidia.com/mig-1g.10gb": "1"}


def test_the_taints_of_its_nodes_are_tolerated_and_no_others() -> None:
    data, decision = judged(make_pod().gpus(1), readme_policy())

    (toleration,) = shaped(data, decision)["spec"]["tolerations"]
    assert (toleration["key"], toleration["effect"]) == (GPU_TAINT["key"], GPU_TAINT["effect"])


def test_it_does_not_speak_outside_the_namespaces_of_teams() -> None:
    _, decision = judged(make_pod().gpus(3), readme_policy(), namespace="batch")

    assert decision.policies == ()
    assert decision.denials == ()
    assert decision.patch == ()
