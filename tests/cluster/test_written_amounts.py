"""Amounts and fields as people write them: `check` calls invalid what the API server rejects; null is zero for both."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from tests.audit.test_evaluate import EMPTY_VALUES, MISSPELLED, REJECTED_RESOURCES, WRONG_VALUES
from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane
from tests.controlplane.build import is_minor_or_newer
from tests.server.site import NOW, policies
from webhook.audit.evaluate import EvaluationContext, build_admission_request, evaluate_all
from webhook.audit.object_files import parse_objects
from webhook.cache.snapshot import view_of_objects
from webhook.model.apimachinery import canonical_text
from webhook.model.limit_ranges import parse_api_quantity
from webhook.model.pod_fields import POD_FIELDS

_META_TYPES = ("ObjectMeta", "OwnerReference", "LabelSelector", "LabelSelectorRequirement")

AMOUNTS: dict[str, Any] = {
    "null": None,
    "a number": 1073741824,
    "a fraction": 1e9,
    "an integer of 100 bits": float(2**100),
    "text": "1Gi",
    "with blanks around": " 1Gi ",
    "a byte after the suffix": "16GB",
    "a small letter": "16gi",
    "an e without exponent": "1e",
    "a blank before the suffix": "16 Gi",
    "nothing": "",
    "a point": ".",
    "a suffix": "k",
    "a word": "many",
    "a placeholder": "${MEMORY}",
    "true": True,
    "a list": [],
}


def create_dry(plane: Plane, namespace: str, pod: Json) -> Json | int:
    """Return limits and requests of the pod as stored, or the status of the refusal."""
    try:
        made = plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    except RefusedError as refusal:
        return refusal.status
    resources: Json = made["spec"]["containers"][0]["resources"]
    return resources


def predict(pod: Json, namespace: str) -> Json | int:
    """Return what `check` reads as the pod's limits and requests, or 400 where it reports an invalid object."""
    context = EvaluationContext(policies=policies(), view=view_of_objects(()), now=NOW, namespace=namespace)
    [result] = evaluate_all(parse_objects("pod.json", orjson.dumps(pod)), context)
    if result.invalid:
        return 400
    read = build_admission_request(pod, context).pod
    assert read is not None
    resources = read.spec.containers[0].resources
    sides = {"limits": resources.limits, "requests": resources.requests}
    return {
        side: {name: canonical_text(parse_api_quantity(amount)) for name, amount in amounts.items()}
        for side, amounts in sides.items()
    }


@pytest.mark.parametrize("resources", [written for written, _ in REJECTED_RESOURCES.values()], ids=REJECTED_RESOURCES)
def test_the_api_server_rejects_resources_as_check_does(plane: Plane, namespace: str, resources: Json) -> None:
    pod = make_pod().namespace(namespace).container("helper", resources=resources).build()

    with pytest.raises(RefusedError) as refused:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All", fieldValidation="Strict")

    assert refused.value.status in (400, 422)
    assert "containers[1].resources" in str(refused.value)


@pytest.mark.parametrize(("template", "path"), [row[:2] for row in MISSPELLED.values()], ids=MISSPELLED)
def test_the_api_server_rejects_misspelled_fields(plane: Plane, namespace: str, template: Json, path: str) -> None:
    pod = make_pod().namespace(namespace).build()
    pod |= {key: pod[key] | fields for key, fields in template.items()}

    with pytest.raises(RefusedError) as refused:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All", fieldValidation="Strict")

    assert f'unknown field "{path}"' in str(refused.value)


REJECTED_VALUES = {
    name: row[:2]
    for name, row in WRONG_VALUES.items()
    if is_minor_or_newer(35) or row[1] != "containers[0].restartPolicy"  # the field is new in 1.35
}


@pytest.mark.parametrize(("spec", "path"), REJECTED_VALUES.values(), ids=REJECTED_VALUES)
def test_the_api_server_rejects_wrong_values(plane: Plane, namespace: str, spec: Json, path: str) -> None:
    pod = make_pod().namespace(namespace).build()
    pod["spec"] |= spec

    with pytest.raises(RefusedError) as refused:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")

    holder = re.sub(r"(\[0\])?(\.\w+)?$", "", path)  # of some fields the server names the object or list
    named = f"{re.escape(path)}|{re.escape(holder)}"
    assert re.search(rf"spec\.({named}): (Unsupported|Invalid) value", str(refused.value))


def test_the_api_server_reads_an_empty_value_as_the_default(plane: Plane, namespace: str) -> None:
    pod = make_pod().namespace(namespace).spec(**EMPTY_VALUES).build()
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")


@pytest.mark.parametrize("type_name", POD_FIELDS)
def test_check_knows_every_field_and_value_that_the_api_server_knows(plane: Plane, type_name: str) -> None:
    package = "apimachinery.pkg.apis.meta.v1" if type_name in _META_TYPES else "api.core.v1"
    schemas = plane.api.get("/openapi/v3/api/v1")["components"]["schemas"]
    served = schemas[f"io.k8s.{package}.{type_name}"]["properties"]
    assert served.keys() - POD_FIELDS[type_name].keys() == set()
    values = {field: set(each["enum"]) for field, each in served.items() if "enum" in each}
    ours = {field: kind.values for field, kind in POD_FIELDS[type_name].items() if kind.values}
    assert [field for field in ours if not values.get(field, set()) <= set(ours[field])] == []


@pytest.mark.parametrize("amount", AMOUNTS.values(), ids=AMOUNTS)
def test_the_api_server_reads_an_amount_as_check_does(plane: Plane, namespace: str, amount: Any) -> None:
    pod = make_pod().namespace(namespace).build()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": amount, "nvidia.com/gpu": 1}}
    assert create_dry(plane, namespace, pod) == predict(pod, namespace)
