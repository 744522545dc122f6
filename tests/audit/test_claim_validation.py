"""What `check` says about resource claims that the API server rejects, and about claims of other versions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.test_evaluate import NOW, evaluate_data, policies
from tests.builders import Json, make_node
from tests.device_builders import partitionable_gpus
from tests.engine.test_claim_review import CLASSES, at_least
from tests.example_cluster import view_of
from webhook.audit.evaluate import EvaluationContext
from webhook.model.claims import with_requests_of_v1

GPU = {"deviceClassName": "gpu"}
FLAT, LATEST = "resource.k8s.io/v1beta1", "resource.k8s.io/v1"


def claim(*requests: Any, version: str = LATEST, **devices: Any) -> Json:
    """Return a claim."""
    metadata = {"name": "c", "namespace": "team"}
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"apiVersion": version, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def exactly(name: Any = "g", **fields: Any) -> Json:
    """Return a request for devices of a class."""
    return {"name": name, "exactly": GPU | fields}


def choices(*some: Json) -> Json:
    """Return a request with choices."""
    return {"name": "g", "firstAvailable": list(some)}


def configured(*requests: str, **opaque: Any) -> Json:
    """Return a claim with a configuration of requests."""
    return claim(exactly(), config=[{"requests": list(requests)} | ({"opaque": opaque} if opaque else {})])


def selected_by(expression: str) -> Json:
    """Return a claim with a selector."""
    return claim(exactly(selectors=[{"cel": {"expression": expression}}]))


REJECTED: dict[str, tuple[Json, str]] = {
    "exactly is forgotten": (
        claim({"name": "g", **GPU}),
        "spec.devices.requests[0].deviceClassName: must be in exactly: kubectl rejects it here",
    ),
    "a count beside exactly": (claim(exactly() | {"count": 2}), "spec.devices.requests[0].count: must be in exactly"),
    "a request for nothing": (
        claim({"name": "g"}),
        "spec.devices.requests[0]: {}Required value: exactly one of `exactly`",
    ),
    "a request with choices beside exactly": (
        claim(exactly() | choices({"name": "a", **GPU})),
        "spec.devices.requests[0]: {}Invalid value: exactly one of `exactly`",
    ),
    "administrative access of a choice": (
        claim(choices({"name": "a", **GPU, "adminAccess": True})),
        "spec.devices.requests[0].firstAvailable[0].adminAccess: must be a known field",
    ),
    "a misspelled field of a request": (
        claim({"name": "g", "firstavailable": [{"name": "a", **GPU}]}),
        "spec.devices.requests[0].firstavailable: must be a known field",
    ),
    "a misspelled field of a selector": (
        claim(exactly(selectors=[{"cel": {"expresion": "true"}}])),
        "spec.devices.requests[0].exactly.selectors[0].cel.expresion: must be a known field",
    ),
    "a misspelled field of the specification": (
        claim(exactly()) | {"spec": {"device": {}}},
        "spec.device: must be a known field: kubectl rejects it, and other clients drop it. Write devices",
    ),
    "a mode that does not exist": (
        claim(exactly(allocationMode="Exact")),
        "spec.devices.requests[0].exactly.allocationMode: must be All or ExactCount, found 'Exact'",
    ),
    "a count that is a text": (
        claim(exactly(count="2")),
        "spec.devices.requests[0].exactly.count: must be a whole number, found text",
    ),
    "requests that are no list": (
        claim() | {"spec": {"devices": {"requests": exactly()}}},
        "spec.devices.requests: must be a list, found a map",
    ),
    "a request without a class": (
        claim({"name": "g", "exactly": {"count": 1}}),
        "spec.devices.requests[0].exactly.deviceClassName: {}Required value. Write the name of a device class",
    ),
    "a class in upper case": (claim(exactly(deviceClassName="GPU")), "exactly.deviceClassName: {}"),
    "a request without a name": (
        claim({"exactly": GPU}),
        "requests[0].name: {}Required value",
    ),
    "a name with a dot": (claim(exactly("a.b")), "requests[0].name: {}Invalid value"),
    "two requests of one name": (
        claim(exactly(), exactly()),
        "requests[1]: {}Duplicate value",
    ),
    "33 requests": (
        claim(*[exactly(f"g{i}") for i in range(33)]),
        "devices.requests: {}Too many",
    ),
    "nine choices": (
        claim(choices(*[{"name": f"g{i}", **GPU} for i in range(9)])),
        "requests[0].firstAvailable: {}Too many: 9",
    ),
    "two choices of one name": (
        claim(choices({"name": "a", **GPU}, {"name": "a", **GPU})),
        "firstAvailable[1]: {}Duplicate value",
    ),
    "a choice without a name": (
        claim(choices(GPU)),
        "firstAvailable[0].name: {}Required value",
    ),
    "33 selectors": (
        claim(exactly(selectors=[{"cel": {"expression": "true"}}] * 33)),
        "exactly.selectors: {}Too many: 33",
    ),
    "a negative count": (claim(exactly(count=-1)), "exactly.count: {}Invalid value: -1"),
    "a count of all": (claim(exactly(count=1, allocationMode="All")), "exactly.count: {}"),
    "an amount that is none": (
        claim(exactly(capacity={"requests": {"memory": "ten"}})),
        "exactly.capacity.requests.memory: {}",
    ),
    "a constraint on a request that does not exist": (
        claim(exactly(), constraints=[{"requests": ["h"], "matchAttribute": "a/b"}]),
        "constraints[0].requests[0]: {}Invalid value",
    ),
    "a constraint on nothing": (
        claim(exactly(), constraints=[{}]),
        "constraints[0]: {}Required",
    ),
    "an attribute without a domain": (
        claim(exactly(), constraints=[{"matchAttribute": "numaNode"}]),
        "constraints[0].matchAttribute: {}Invalid value",
    ),
    "a constraint on one request twice": (
        claim(exactly(), constraints=[{"requests": ["g", "g"], "matchAttribute": "a/b"}]),
        'constraints[0].requests[1]: {}Duplicate value: "g"',
    ),
    "33 constraints": (
        claim(exactly(), constraints=[{"matchAttribute": "a/b"}] * 33),
        "devices.constraints: {}Too many: 33",
    ),
    "an amount beside the requests of capacity": (
        claim(exactly(capacity={"memory": "10Gi"})),
        "exactly.capacity.memory: must be in capacity.requests: kubectl rejects it here. "
        "Write capacity: {{requests: {{memory: 10Gi}}}}",
    ),
    "an amount of a choice beside the requests of capacity": (
        claim(choices({"name": "a", **GPU, "capacity": {"memory": "10Gi"}})),
        "firstAvailable[0].capacity.memory: must be in capacity.requests",
    ),
    "a configuration of nothing": (configured(), "config[0].opaque: {}Required value"),
    "a configuration of a request that does not exist": (
        configured("h", driver="a.b", parameters={}),
        "config[0].requests[0]: {}Invalid value",
    ),
    "a configuration of no driver": (configured(parameters={}), "config[0].opaque.driver: {}Required value"),
    "a configuration of a driver with a long name": (
        configured(driver="a" * 64, parameters={}),
        "config[0].opaque.driver: {}Too long",
    ),
    "a configuration of a driver with a space": (
        configured(driver="a b", parameters={}),
        "config[0].opaque.driver: {}Invalid value",
    ),
    "a configuration without parameters": (configured(driver="a.b"), "config[0].opaque.parameters: {}Required value"),
    "parameters that are a text": (
        configured(driver="a.b", parameters="x"),
        "config[0].opaque.parameters: {}Invalid value: must be a valid JSON",
    ),
    "parameters that are too long": (
        configured(driver="a.b", parameters={"a": "x" * 10240}),
        "config[0].opaque.parameters: {}Too long",
    ),
    "a claim in upper case": (
        claim() | {"metadata": {"name": "A", "namespace": "team"}},
        "metadata.name: {}Invalid value",
    ),
    "a toleration of every value that has one": (
        claim(exactly(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}])),
        'tolerations[0].value: {}Invalid value: "x": must be empty for operator `Exists`',
    ),
    "a selector that reads an unknown field": (
        selected_by("true && device.memory > 1"),
        "selectors[0].cel.expression: {}Invalid value: at line 1, column 9: undefined field 'memory'",
    ),
    "a selector that ends too early": (selected_by("device.driver == "), "selectors[0].cel.expression: {}Invalid"),
    "a selector that is a text": (selected_by("device.driver"), "selectors[0].cel.expression: {}Invalid value: must"),
    "a selector that is too long": (
        selected_by(" || ".join(["true"] * 1500)),
        "selectors[0].cel.expression: {}Invalid value: must be at most 10240 bytes long",
    ),
    "a selector that is nested too deeply": (
        selected_by("(" * 300 + "true" + ")" * 300),
        "selectors[0].cel.expression: {}Invalid value: at line 1, column 251: expression recursion limit exceeded: 250",
    ),
    "a selector of a choice": (
        claim(choices({"name": "a", **GPU, "selectors": [{"cel": {"expression": "1"}}]})),
        "firstAvailable[0].selectors[0].cel.expression: {}Invalid",
    ),
    "a template": (
        claim() | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim({"name": "g", **GPU})["spec"]}},
        "spec.spec.devices.requests[0].deviceClassName: must be in exactly",
    ),
    "a template without a specification of its own": (
        claim(exactly()) | {"kind": "ResourceClaimTemplate"},
        "spec.devices: must be in spec.spec",
    ),
}
"""Claims that no API server of 1.36 stores if kubectl sends them, and the error."""

ACCEPTED: dict[str, Json] = {
    "exactly": claim(exactly()),
    "choices": claim(choices({"name": "a", **GPU}, {"name": "b", "count": 2, **GPU})),
    "all devices": claim(exactly(allocationMode="All")),
    "no requests": claim(),
    "both attributes of a constraint: the API server stores it, and the scheduler reads the first": claim(
        exactly(), constraints=[{"matchAttribute": "a/b", "distinctAttribute": "a/c"}]
    ),
    "a null is absent": claim(exactly(count=None, selectors=None)),
    "a constraint on a choice": claim(
        choices({"name": "a", **GPU}), constraints=[{"requests": ["g/a"], "distinctAttribute": "a.b/c"}]
    ),
    "a toleration, an amount and a configuration": claim(
        exactly(tolerations=[{"operator": "Exists"}], capacity={"requests": {"memory": "10Gi"}}),
        config=[{"requests": ["g"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}],
    ),
}


@pytest.fixture(scope="module")
def cluster() -> EvaluationContext:
    """A cluster with a card that can be partitioned."""
    view = view_of(make_node("h100", {}), *partitionable_gpus("h100"), *CLASSES)
    return EvaluationContext(policies=policies(), view=view, now=NOW)


@pytest.mark.parametrize(("data", "sentence"), REJECTED.values(), ids=REJECTED)
def test_a_claim_that_the_api_server_rejects_is_invalid(data: Json, sentence: str, cluster: EvaluationContext) -> None:
    result = evaluate_data(data, cluster)
    assert result.invalid
    assert sentence.format("the API server rejects it: ") in result.reason


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_a_claim_that_the_api_server_accepts_is_evaluated(data: Json, cluster: EvaluationContext) -> None:
    assert not evaluate_data(data, cluster).invalid


def pod_with(*claims: Any, used: Any = ({"name": "b"},), **spec: Any) -> Json:
    """Return a pod that declares claims, and whose container uses some."""
    container = {"name": "main", "image": "a", "resources": {"claims": list(used)}}
    fields = {"containers": [container], "resourceClaims": list(claims)} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": fields}


def named(name: Any = "b", **source: Any) -> Json:
    """Return a claim of a pod, of a template if no source is given."""
    return {"name": name, **(source or {"resourceClaimTemplateName": "t"})}


USED = "spec.containers[0].resources.claims"
ABSENT = f'{USED}[0]: {{}}Not found: "b": must be one of the names in pod.spec.resourceClaims'
SOURCES = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
WRONG_PODS: dict[str, tuple[Json, str]] = {
    "another claim is declared": (pod_with(named("c")), f"{ABSENT}: c"),
    "no claim is declared": (pod_with(), f"{ABSENT} which is empty"),
    "a claim with two sources": (
        pod_with(named(resourceClaimName="c", resourceClaimTemplateName="t")),
        "spec.resourceClaims[0]: {}Invalid value: at most one of",
    ),
    "a claim with no source": (pod_with({"name": "b"}), f"spec.resourceClaims[0]: {{}}Invalid value: {SOURCES}"),
    "a source of Kubernetes 1.30": (
        pod_with(named(source={"resourceClaimTemplateName": "t"})),
        f"spec.resourceClaims[0]: {{}}Invalid value: {SOURCES}, beside name: Kubernetes 1.31 removed source",
    ),
    "a claim without a name": (pod_with({"resourceClaimName": "c"}), "spec.resourceClaims[0].name: {}Required value"),
    "two claims of one name": (pod_with(named(), named()), 'spec.resourceClaims[1].name: {}Duplicate value: "b"'),
    "a name with a dot": (pod_with(named("b.c")), "spec.resourceClaims[0].name: {}Invalid value"),
    "a template in upper case": (
        pod_with(named(resourceClaimTemplateName="T")),
        "spec.resourceClaims[0].resourceClaimTemplateName: {}Invalid value",
    ),
    "an empty name of a claim": (
        pod_with(named(resourceClaimName="")), "spec.resourceClaims[0].resourceClaimName: {}Invalid value",
    ),
    "a container that names a choice": (
        pod_with(named(), used=[{"name": "b", "request": "gpu/small"}]), f"{USED}[0].request: {{}}Invalid value",
    ),
    "a container that uses a claim twice": (
        pod_with(named(), used=[{"name": "b"}, {"name": "b"}]), f'{USED}[1]: {{}}Duplicate value: "b"',
    ),
    "a container that uses a request twice": (
        pod_with(named(), used=[{"name": "b", "request": "g"}] * 2), f'{USED}[1]: {{}}Duplicate value: "b/g"',
    ),
    "a container that uses a request, and all of them": (
        pod_with(named(), used=[{"name": "b", "request": "g"}, {"name": "b"}]), f'{USED}[1]: {{}}Duplicate value: "b"',
    ),
    "a container that names no claim": (pod_with(named(), used=[{"request": "g"}]), f"{USED}[0]: {{}}Required value"),
    "a container with the bare name of a claim": (
        pod_with(named(), used=["b"]), f"{USED}[0]: {{}}Invalid value: \"b\": must be a map",
    ),
    "a pod that uses claims for all containers": (
        pod_with(named(), resources={"claims": [{"name": "b"}]}), "spec.resources.claims: {}Forbidden",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "sentence"), WRONG_PODS.values(), ids=WRONG_PODS)
def test_a_pod_whose_claims_the_api_server_rejects_is_invalid(
    pod: Json, sentence: str, cluster: EvaluationContext
) -> None:
    deployment = {**pod, "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": pod["spec"]}}}
    for data in (pod, deployment):
        result = evaluate_data(data, cluster)
        assert result.invalid
        assert sentence.format("the API server rejects it: ") in result.reason


RIGHT_PODS: dict[str, Json] = {
    "a claim": pod_with(named(resourceClaimName="c")),
    "two requests of a claim": pod_with(named(), used=[{"name": "b", "request": "g"}, {"name": "b", "request": "h"}]),
    "a null source is absent": pod_with(named(resourceClaimName=None, resourceClaimTemplateName="t")),
    "claims that begin alike": pod_with(named(), named("b-c"), used=[{"name": "b-c", "request": "g"}, {"name": "b"}]),
    "an empty request": pod_with(named(), used=[{"name": "b", "request": ""}]),
}


@pytest.mark.parametrize("pod", RIGHT_PODS.values(), ids=RIGHT_PODS)
def test_a_pod_whose_claims_the_api_server_accepts_is_evaluated(pod: Json, cluster: EvaluationContext) -> None:
    assert not evaluate_data(pod, cluster).invalid


MISWRITTEN: dict[str, tuple[dict[str, str], str]] = {
    "a kind in another case": ({"kind": "Resourceclaim"}, "kind: must be ResourceClaim"),
    "a group that is missing": ({"apiVersion": "v1"}, "apiVersion: must be resource.k8s.io/v1"),
    "a version that is not served any more": (
        {"apiVersion": "resource.k8s.io/v1alpha3"},
        "apiVersion: must be resource.k8s.io/v1, found 'resource.k8s.io/v1alpha3'",
    ),
}


@pytest.mark.parametrize(("fields", "sentence"), MISWRITTEN.values(), ids=MISWRITTEN)
def test_a_claim_of_a_kind_or_version_that_does_not_exist_is_invalid(
    fields: dict[str, str], sentence: str, cluster: EvaluationContext
) -> None:
    result = evaluate_data(claim(exactly()) | fields, cluster)
    assert result.invalid
    assert sentence in result.reason


SELECTED = {"deviceClassName": "mig", "selectors": [{"cel": {"expression": at_least("10Gi")}}]}
VERSIONS: dict[str, Json] = {
    "v1": claim({"name": "g", "exactly": SELECTED}),
    "v1beta2": claim({"name": "g", "exactly": SELECTED}, version="resource.k8s.io/v1beta2"),
    "v1beta1, whose requests have the fields of exactly": claim({"name": "g", **SELECTED}, version=FLAT),
    "choices of v1beta1": claim(choices({"name": "a", **SELECTED}), version=FLAT),
    "a template of v1beta1": claim(version=FLAT)
    | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim({"name": "g", **SELECTED})["spec"]}},
}


@pytest.mark.parametrize("data", VERSIONS.values(), ids=VERSIONS)
def test_a_claim_of_any_version_is_reviewed(data: Json, cluster: EvaluationContext) -> None:
    assert [each.finding.code for each in evaluate_data(data, cluster).findings] == ["GPU-D103"]


def test_only_requests_of_v1beta1_are_converted() -> None:
    flat = claim({"name": "g", **GPU, "count": 2}, version=FLAT, config=[])
    assert with_requests_of_v1(flat)["spec"] == claim(exactly(count=2), config=[])["spec"]
    assert with_requests_of_v1(claim({"name": "g", **GPU})) == claim({"name": "g", **GPU})
