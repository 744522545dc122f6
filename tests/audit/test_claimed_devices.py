"""What `explain` says about the devices that claims would get."""

from __future__ import annotations

import json

import pytest

from tests.builders import Json
from tests.device_builders import allocated, resource_claim
from tests.engine.test_claim_review import CLUSTER, MEMORY, claim, pod_with_claim, request, template
from tests.engine.test_workload_review import workload
from tests.example_cluster import NOW, policies_of, view_of
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import parse_objects
from webhook.audit.pod_audit import evaluate_for_explain
from webhook.report.explain import explain_lines

LARGE = f"{MEMORY}.compareTo(quantity('30Gi')) >= 0"
NOT_ON_A10 = "none (cannot allocate all claims) on 1 node (a10)"
WHOLE = "NVIDIA-H100-80GB-HBM3 for g on 1 node (h100)"
NAMED = pod_with_claim(resourceClaimTemplateName="c")
CASES: dict[str, tuple[list[Json], list[str]]] = {
    "a claim": ([claim(request(LARGE))], [WHOLE, NOT_ON_A10]),
    "a template": (
        [template(request(LARGE, count=2))],
        [f"2 x {WHOLE}", NOT_ON_A10],
    ),
    "a MIG device": (
        [claim(request(name="mig"))],
        [
            "1g.10gb of NVIDIA-H100-80GB-HBM3 for g on 1 node (h100)",
            NOT_ON_A10,
        ],
    ),
    "a pod beside its template": ([NAMED.build(), template(request())], [WHOLE, "NVIDIA-A10 for g on 1 node (a10)"]),
    "a workload beside its template": (
        [workload("Deployment", NAMED), template(request())],
        [WHOLE, "NVIDIA-A10 for g on 1 node (a10)"],
    ),
    "a pod without its template": ([NAMED.build()], ["none: resource claim template c does not exist"]),
    "a claim of a class that does not exist": (
        [claim(request(name="gpus"))],
        ["none: request g: device class gpus does not exist"],
    ),
    "a pod without claims": ([pod_with_claim().spec(resourceClaims=[]).build()], []),
}


def devices_of(objects: list[Json], *cluster: Json) -> list[str]:
    """Return the devices of the first of some objects, as `explain` prints them."""
    context = EvaluationContext(policies_of(), view_of(*cluster), NOW, namespace="team")
    text = "\n---\n".join(map(json.dumps, objects))
    first = next(iter(evaluate_for_explain(parse_objects("file", text.encode()), context)))
    lines = list(explain_lines(first))
    return [line[12:] for line in lines if line[:12].strip() == "Devices" or line.startswith(" " * 12)]


@pytest.mark.parametrize(("objects", "devices"), CASES.values(), ids=CASES)
def test_devices_are_explained(objects: list[Json], devices: list[str]) -> None:
    assert devices_of(objects, *CLUSTER) == devices


def test_devices_in_use_are_left_out() -> None:
    in_use = [resource_claim(f"c{i}", allocated("h100", f"gpu-{i}")) for i in range(2)]
    assert devices_of([claim(request(LARGE))], *CLUSTER, *in_use) == [
        "none (cannot allocate all claims) on 2 nodes (h100, a10)"
    ]


def test_nothing_is_said_without_devices() -> None:
    assert devices_of([claim(request())]) == []
