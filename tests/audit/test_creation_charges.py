"""Claims and pods of files are charged to ResourceQuotas before the next object is evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import Json, make_namespace, make_pod
from tests.device_builders import resource_claim
from tests.engine.test_claim_review import CLUSTER, claim, request, template
from tests.engine.test_fit import quota
from tests.example_cluster import NOW, parse_documents, policies_of, policy, view_of
from webhook.audit.evaluate import EvaluationContext, evaluate_all

DEVICES, GPUS = "gpu.deviceclass.resource.k8s.io/devices", "requests.nvidia.com/gpu"


def pod_of_template(name: str) -> Json:
    """Return a pod with a claim of template c."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "c"}]
    return make_pod(name).namespace("team").spec(resourceClaims=claims).build()


def pod(name: str) -> Json:
    """Return a pod with a GPU."""
    return make_pod(name).namespace("team").gpus(1).build()


CASES: dict[str, tuple[Json, Sequence[Json], Sequence[Json], list[str]]] = {
    "the second of two claims": ({DEVICES: "1"}, (), [claim(request()), resource_claim("d")], ["d GPU-D109"]),
    "two claims that fit": ({DEVICES: "2"}, (), [claim(request()), resource_claim("d")], []),
    "a claim after one that does not fit": (
        {DEVICES: "1"},
        (),
        [claim(request(count=2)), resource_claim("d")],
        ["c GPU-D109"],
    ),
    "a claim after one that exists": (
        {DEVICES: "1"},
        [claim(request())],
        [claim(request()), resource_claim("d")],
        [],
    ),
    "the claim of a pod after another claim": (
        {DEVICES: "1"},
        [template(request())],
        [resource_claim("d"), pod_of_template("p")],
        ["p GPU-Q306"],
    ),
    "the claim of a second pod": (
        {DEVICES: "1"},
        [template(request())],
        [pod_of_template("p"), pod_of_template("q")],
        ["q GPU-Q306"],
    ),
    "the second of two pods": ({GPUS: "1"}, (), [pod("p"), pod("q")], ["q GPU-Q301"]),
    "a pod after one that exists": ({GPUS: "1"}, [pod("p")], [pod("p"), pod("q")], []),
}


@pytest.mark.parametrize(("hard", "stored", "objects", "want"), CASES.values(), ids=CASES)
def test_what_was_created_before_counts(
    hard: Json, stored: Sequence[Json], objects: Sequence[Json], want: list[str]
) -> None:
    view = view_of(make_namespace("team"), *CLUSTER, *stored, quota(hard))
    context = EvaluationContext(policies_of(policy("mode: enforce\nlimits: {resourceQuotas: evaluate}")), view, NOW)
    results = evaluate_all(parse_documents(objects), context)
    found = [f"{one.name} {each.finding.code}" for one in results for each in one.findings]
    assert [each for each in found if each.split()[1] in ("GPU-D109", "GPU-Q301", "GPU-Q306")] == want
