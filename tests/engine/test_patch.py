"""The patch: its additions and replacements apply whether fields of the pod are absent, null or empty."""

from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from tests.builders import Json, make_pod
from webhook.engine.patch import build_patch
from webhook.engine.pod_context import PodMutation
from webhook.model.pods import NodeSelectorRequirement, Toleration, parse_pod
from webhook.report.object_diff import apply_json_patch

RULE = NodeSelectorRequirement("zone", "In", ("a", "b"))
OTHER = NodeSelectorRequirement("disk", "Exists")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
DISK = {"key": "disk", "operator": "Exists"}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n"]}
WISH = {"weight": 1, "preference": {"matchExpressions": [DISK]}}
NEAR = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}


def patched(data: Json, **changes: Any) -> Json:
    """Return a pod with changes, after checking that two JSON Patch libraries give the same result."""
    shape = PodMutation(parse_pod(data))
    for name, value in changes.items():
        setattr(shape, name, value)
    shape.record_change("something")
    done = build_patch(shape, ("p",), "0" * 12)
    assert done is not None
    patch: Any = list(done)
    after: Json = jsonpatch.apply_patch(data, patch)
    assert after == apply_json_patch(data, patch)
    return after


def required(*terms: Json) -> Json:
    """Return a required node affinity."""
    return {REQUIRED: {"nodeSelectorTerms": list(terms)}}


def one(*expressions: Json) -> Json:
    """Return a term with expressions."""
    return {"matchExpressions": list(expressions)}


AFFINITIES: dict[str, tuple[Json, Json]] = {
    "no affinity": ({}, {"nodeAffinity": required(one(ZONE))}),
    "null": ({"affinity": None}, {"nodeAffinity": required(one(ZONE))}),
    "empty": ({"affinity": {}}, {"nodeAffinity": required(one(ZONE))}),
    "no node affinity in it": (
        {"affinity": {"podAffinity": {PREFERRED: [NEAR]}}},
        {"podAffinity": {PREFERRED: [NEAR]}, "nodeAffinity": required(one(ZONE))},
    ),
    "a null node affinity": ({"affinity": {"nodeAffinity": None}}, {"nodeAffinity": required(one(ZONE))}),
    "preferred terms only": (
        {"affinity": {"nodeAffinity": {PREFERRED: [WISH]}}},
        {"nodeAffinity": {PREFERRED: [WISH]} | required(one(ZONE))},
    ),
    "one term": ({"affinity": {"nodeAffinity": required(one(DISK))}}, {"nodeAffinity": required(one(DISK, ZONE))}),
    "every term of several": (
        {"affinity": {"nodeAffinity": required(one(DISK), {"matchFields": [FIELD]})}},
        {"nodeAffinity": required(one(DISK, ZONE), {"matchFields": [FIELD]} | one(ZONE))},
    ),
    "a term that already has the expression": (
        {"affinity": {"nodeAffinity": required(one(ZONE), one(DISK))}},
        {"nodeAffinity": required(one(ZONE), one(DISK, ZONE))},
    ),
    "a term that matches nothing still matches nothing": (
        {"affinity": {"nodeAffinity": required({}, one(DISK))}},
        {"nodeAffinity": required({}, one(DISK, ZONE))},
    ),
}


@pytest.mark.parametrize(("spec", "want"), AFFINITIES.values(), ids=AFFINITIES)
def test_a_required_expression_is_added_to_existing_ones(spec: Json, want: Json) -> None:
    assert patched(make_pod().spec(**spec).build(), required_node_affinity=[RULE])["spec"]["affinity"] == want


def test_an_expression_without_values_is_written_without_them() -> None:
    after = patched(make_pod().build(), required_node_affinity=[OTHER])
    assert after["spec"]["affinity"]["nodeAffinity"] == required(one(DISK))


WISHES: dict[str, tuple[Json, Json]] = {
    "no affinity": ({}, {"nodeAffinity": {PREFERRED: [WISH]}, "podAffinity": {PREFERRED: [NEAR]}}),
    "an empty one": (
        {"affinity": {}},
        {"nodeAffinity": {PREFERRED: [WISH]}, "podAffinity": {PREFERRED: [NEAR]}},
    ),
    "preferred terms of the user": (
        {"affinity": {"nodeAffinity": {PREFERRED: [WISH]}, "podAffinity": {PREFERRED: [NEAR]}}},
        {"nodeAffinity": {PREFERRED: [WISH, WISH]}, "podAffinity": {PREFERRED: [NEAR, NEAR]}},
    ),
    "required terms stay": (
        {"affinity": {"nodeAffinity": required(one(DISK)), "podAffinity": {REQUIRED: [NEAR]}}},
        {
            "nodeAffinity": required(one(DISK)) | {PREFERRED: [WISH]},
            "podAffinity": {REQUIRED: [NEAR], PREFERRED: [NEAR]},
        },
    ),
    "only anti-affinity": (
        {"affinity": {"podAntiAffinity": {REQUIRED: [NEAR]}}},
        {
            "podAntiAffinity": {REQUIRED: [NEAR]},
            "nodeAffinity": {PREFERRED: [WISH]},
            "podAffinity": {PREFERRED: [NEAR]},
        },
    ),
}


@pytest.mark.parametrize(("spec", "want"), WISHES.values(), ids=WISHES)
def test_preferred_terms_are_added_to_existing_ones(spec: Json, want: Json) -> None:
    assert (
        patched(make_pod().spec(**spec).build(), preferred_node_affinity=[WISH], preferred_pod_affinity=[NEAR])["spec"][
            "affinity"
        ]
        == want
    )


def test_a_pod_with_only_pod_affinity_gets_no_node_affinity() -> None:
    affinity = {"podAntiAffinity": {REQUIRED: [NEAR]}}
    after = patched(make_pod().spec(affinity=affinity).build(), preferred_pod_affinity=[NEAR])
    assert after["spec"]["affinity"] == affinity | {"podAffinity": {PREFERRED: [NEAR]}}


def test_an_affinity_with_nothing_to_add_stays() -> None:
    data = make_pod().spec(affinity={"nodeAffinity": required(one(DISK))}).build()
    assert patched(data, labels={"a": "b"})["spec"] == data["spec"]


@pytest.mark.parametrize("have", [{}, {"tolerations": None}, {"tolerations": []}, {"tolerations": [{"key": "a"}]}])
def test_tolerations_are_appended_or_created(have: Json) -> None:
    added = Toleration(key="k", operator="Equal", value="v", effect="NoExecute", toleration_seconds=0)
    written = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0}
    after = patched(make_pod().spec(**have).build(), tolerations=[added])
    assert after["spec"]["tolerations"] == [*(have.get("tolerations") or []), written]


@pytest.mark.parametrize("have", [{}, {"labels": None}, {"labels": {}}, {"labels": {"x": "y", "a/~b": "old"}}])
def test_labels_with_any_key_are_set_or_created(have: Json) -> None:
    data = make_pod().build()
    data["metadata"] |= have
    after = patched(data, labels={"example.com/a": "b", "a/~1": "c"})
    assert after["metadata"]["labels"] == (have.get("labels") or {}) | {"example.com/a": "b", "a/~1": "c"}


RESOURCES: dict[str, tuple[Json, Json]] = {
    "both sides": (
        {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
        {"limits": {"new": "1"}, "requests": {"new": "2"}},
    ),
    "limits only": ({"limits": {"nvidia.com/gpu": "1"}}, {"limits": {"new": "1"}, "requests": {"new": "2"}}),
    "null requests": (
        {"limits": {"nvidia.com/gpu": "1"}, "requests": None},
        {"limits": {"new": "1"}, "requests": {"new": "2"}},
    ),
    "claims beside them stay": (
        {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "c"}]},
        {"limits": {"new": "1"}, "requests": {"new": "2"}, "claims": [{"name": "c"}]},
    ),
    "claims without amounts stay": (
        {"claims": [{"name": "c", "request": "r"}]},
        {"limits": {"new": "1"}, "requests": {"new": "2"}, "claims": [{"name": "c", "request": "r"}]},
    ),
    "no amounts": ({}, {"limits": {"new": "1"}, "requests": {"new": "2"}}),
    "no claims": ({"claims": []}, {"limits": {"new": "1"}, "requests": {"new": "2"}}),
}


@pytest.mark.parametrize(("have", "want"), RESOURCES.values(), ids=RESOURCES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_containers_amounts_are_replaced(kind: str, have: Json, want: Json) -> None:
    data = make_pod().container("first", kind=kind, resources=have).build()
    path = ("spec", kind, len(data["spec"][kind]) - 1)
    after = patched(data, limits={path: {"new": "1"}}, requests={path: {"new": "2"}})
    assert after["spec"][kind][-1]["resources"] == want


def test_a_mutation_without_changes_returns_the_pod_itself() -> None:
    assert build_patch(PodMutation(parse_pod(make_pod().build())), ("p",), "0" * 12) == ()


def test_the_same_change_is_recorded_once() -> None:
    shape = PodMutation(parse_pod(make_pod().build()))
    for what in ("labels", "tolerations", "labels"):
        shape.record_change(what)
    assert shape.changed == ["labels", "tolerations"]
