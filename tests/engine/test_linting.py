"""Lint: findings in LimitRanges and ResourceQuotas, and none in the corrected object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json
from tests.example_cluster import codes, review
from tests.strategies import anything
from webhook.engine.linting import fix_object, lint_all_objects, lint_object
from webhook.engine.linting.validation import find_object_errors
from webhook.model.findings import Finding

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
MILLI, CLASS = "rightslice.dev/gpu-milli", "deviceclass.resource.kubernetes.io/a"


def limit_range(*items: Json) -> Json:
    """Return a LimitRange as in a file."""
    spec = {"limits": [{"type": "Container"} | item for item in items]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lr", "namespace": "team"}, "spec": spec}


def quota(**hard: Any) -> Json:
    """Return a quota; `__` in a key is a slash, `_` a dot."""
    keys = {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}
    metadata = {"name": "quota", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": keys}}


def fixed(data: Json) -> Json:
    """Return the fixed object, linted alone."""
    return fix_object(data, lint_object(data))


def scoped(data: Json) -> Json:
    """Return the quota with a scope: only pods without a deadline."""
    return data | {"spec": data["spec"] | {"scopes": ["NotTerminating"]}}


DEVICES = "a.deviceclass.resource.k8s.io/devices"
FREE = {"max": {GPU: 4}, "default": {GPU: "0"}}
NONE = {"type": "Container", "default": {GPU: "0"}}
TRAPS: dict[str, tuple[Json, list[str], Json]] = {
    "a maximum alone": (limit_range({"max": {GPU: 4}}), ["GPU-L301"], {"limits": [{"type": "Container"} | FREE]}),
    "a maximum as it is stored": (
        limit_range({"max": {GPU: "4"}, "default": {GPU: "4"}, "defaultRequest": {GPU: "4"}}),
        ["GPU-L301"],
        {"limits": [{"type": "Container", "max": {GPU: "4"}, "default": {GPU: "0"}}]},
    ),
    "a maximum with a default of zero": (limit_range(FREE), [], {"limits": [{"type": "Container"} | FREE]}),
    "a maximum of zero": (limit_range({"max": {GPU: 0}}), [], {}),
    "a minimum alone": (
        limit_range({"min": {GPU: 1}, "max": {"cpu": 4}}),
        ["GPU-L302"],
        {"limits": [{"type": "Container", "max": {"cpu": 4}}]},
    ),
    "a default request alone": (limit_range({"defaultRequest": {GPU: 1}}), ["GPU-L302"], {"limits": []}),
    "a default": (
        limit_range({"default": {SLICE: 1}}),
        ["GPU-L303"],
        {"limits": [{"type": "Container", "default": {SLICE: "0"}}]},
    ),
    "a default below the maximum": (
        limit_range({"max": {GPU: 4}, "default": {GPU: 1}}),
        ["GPU-L303"],
        {"limits": [{"type": "Container"} | FREE]},
    ),
    "a bound on pods": (
        limit_range({"type": "Pod", "max": {GPU: 4, "cpu": 8}, "min": {GPU: 1}}),
        ["GPU-L304", "GPU-L304"],
        {"limits": [{"type": "Pod", "max": {GPU: 4, "cpu": 8}}, NONE]},
    ),
    "a bound on pods, and a default of zero": (
        limit_range({"type": "Pod", "max": {GPU: 4}}, {"default": {GPU: "0"}, "defaultRequest": {GPU: "0"}}),
        [],
        {},
    ),
    "a minimum of pods, and a default of zero": (
        limit_range(NONE, {"type": "Pod", "max": {GPU: 4}, "min": {GPU: 1}}),
        ["GPU-L304"],
        {"limits": [NONE, {"type": "Pod", "max": {GPU: 4}}]},
    ),
    "a minimum of pods that would reject pods without a default": (
        limit_range({"type": "Pod", "min": {GPU: 1}}, {"default": {GPU: 1}}),
        ["GPU-L304", "GPU-L303"],
        {"limits": [NONE]},
    ),
    "a minimum of zero for pods": (limit_range(NONE, {"type": "Pod", "min": {GPU: 0}}), [], {}),
    "a bound on pods, and a maximum within it that is the default": (
        limit_range({"max": {GPU: 4}}, {"type": "Pod", "max": {GPU: 8}}),
        ["GPU-L301"],
        {"limits": [{"type": "Container"} | FREE, {"type": "Pod", "max": {GPU: 8}}]},
    ),
    "a bound on pods, and a minimum of containers": (
        limit_range({"type": "Pod", "max": {GPU: 8}}, {"min": {GPU: 1}}),
        ["GPU-L304", "GPU-L302"],
        {"limits": [{"type": "Pod", "max": {GPU: 8}}, NONE]},
    ),
    "a bound on pods, and a default above it": (
        limit_range({"type": "Pod", "max": {GPU: 8}}, {"default": {GPU: 9}}),
        ["GPU-L304", "GPU-L303"],
        {"limits": [{"type": "Pod", "max": {GPU: 8}}, NONE]},
    ),
    "a bound on pods and containers without a default": (
        limit_range({"type": "Pod", "max": {GPU: 8}}, {"max": {"memory": "1Gi"}, "default": None}),
        ["GPU-L304"],
        {"limits": [{"type": "Pod", "max": {GPU: 8}}, NONE | {"max": {"memory": "1Gi"}}]},
    ),
    "a maximum of thousandths and of devices": (
        limit_range({"max": {MILLI: "4000", CLASS: "2"}}),
        ["GPU-L301", "GPU-L301"],
        {
            "limits": [
                {"type": "Container", "max": {MILLI: "4000", CLASS: "2"}, "default": {MILLI: "0", CLASS: "0"}},
            ]
        },
    ),
    "a minimum of thousandths and of devices, which need no limit": (
        limit_range({"min": {MILLI: "1", CLASS: "1"}}),
        ["GPU-L302", "GPU-L303"],
        {"limits": []},
    ),
    "a minimum of zero devices": (limit_range({"min": {CLASS: "0"}}), [], {}),
    "a ratio": (limit_range({"maxLimitRequestRatio": {GPU: 1}}), ["GPU-L305"], {"limits": []}),
    "CPU and memory": (limit_range({"max": {"cpu": 4}, "min": {"memory": "1Mi"}}), [], {}),
    "limits. of a GPU": (
        quota(limits_nvidia_com__gpu=8),
        ["GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": 8, "requests.rightslice.dev/gpu-milli": "8000"}},
    ),
    "a bare slice": (quota(**{"nvidia_com__mig-1g_10gb": 7}), ["GPU-Q401"], {"hard": {f"requests.{SLICE}": 7}}),
    "GPUs alone": (
        quota(requests_nvidia_com__gpu="2k"),
        ["GPU-Q402"],
        {"hard": {f"requests.{GPU}": "2k", "requests.rightslice.dev/gpu-milli": "2000000"}},
    ),
    "GPUs and slices, which count the most on a card of 40 GB": (
        quota(**{"requests_nvidia_com__gpu": 4, "requests_nvidia_com__mig-1g_10gb": 8}),
        ["GPU-Q402"],
        {"hard": {f"requests.{GPU}": 4, f"requests.{SLICE}": 8, "requests.rightslice.dev/gpu-milli": "6000"}},
    ),
    "GPUs, shares, slices that no known card has, and no GPUs": (
        quota(
            requests_nvidia_com__gpu=1,
            requests_nvidia_com__gpu_shared=2,
            **{"limits_nvidia_com__mig-1g_99gb": "3", "pods": 7, "requests_cpu": "7"},
        ),
        ["GPU-Q401", "GPU-Q402"],
        {
            "hard": {
                f"requests.{GPU}": 1,
                f"requests.{GPU}.shared": 2,
                "requests.nvidia.com/mig-1g.99gb": "3",
                "pods": 7,
                "requests.cpu": "7",
                "requests.rightslice.dev/gpu-milli": "6000",
            }
        },
    ),
    "a null amount, which is zero": (
        quota(nvidia_com__gpu=4, requests_nvidia_com__gpu=None),
        ["GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": "0", "requests.rightslice.dev/gpu-milli": "0"}},
    ),
    "a null maximum, which is zero": (limit_range({"max": {GPU: None}}), [], {}),
    "GPUs and thousandths": (
        quota(**{"requests_nvidia_com__gpu": 2, "requests_rightslice_dev__gpu-milli": 2000}),
        [],
        {},
    ),
    "thousandths under keys that are never counted": (
        quota(**{"rightslice_dev__gpu-milli": 4000, "limits_rightslice_dev__gpu-milli": 3000}),
        ["GPU-Q401", "GPU-Q401"],
        {"hard": {"requests.rightslice.dev/gpu-milli": 3000}},
    ),
    "an amount that counts stays, with smaller ones that do not": (
        quota(limits_nvidia_com__gpu=4, nvidia_com__gpu="3", requests_nvidia_com__gpu=5),
        ["GPU-Q401", "GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": 5, "requests.rightslice.dev/gpu-milli": "5000"}},
    ),
    "one amount of GPUs under two keys that do not count": (
        quota(limits_nvidia_com__gpu=4, nvidia_com__gpu="3"),
        ["GPU-Q401", "GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": "3", "requests.rightslice.dev/gpu-milli": "3000"}},
    ),
    "an invalid amount, with a valid one": (
        quota(nvidia_com__gpu="many", requests_nvidia_com__gpu=5),
        ["GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": 5, "requests.rightslice.dev/gpu-milli": "5000"}},
    ),
    "a negative amount, with a valid one": (
        quota(limits_nvidia_com__gpu="-3", requests_nvidia_com__gpu=5),
        ["GPU-Q401", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": 5, "requests.rightslice.dev/gpu-milli": "5000"}},
    ),
    "a GPU and a half": (
        quota(requests_nvidia_com__gpu=1.5),
        ["GPU-Q403", "GPU-Q402"],
        {"hard": {f"requests.{GPU}": "1", "requests.rightslice.dev/gpu-milli": "1000"}},
    ),
    "a bare class of devices": (
        quota(deviceclass_resource_kubernetes_io__a=1),
        ["GPU-Q401"],
        {"hard": {"requests.deviceclass.resource.kubernetes.io/a": 1}},
    ),
    "devices of a class under requests.": (
        quota(requests_a_deviceclass_resource_k8s_io__devices=1),
        ["GPU-Q401"],
        {"hard": {DEVICES: 1}},
    ),
    "devices of a class in a quota with scopes": (
        scoped(quota(a_deviceclass_resource_k8s_io__devices=1)),
        ["GPU-Q401"],
        {"hard": {DEVICES: 1}},
    ),
    "half a core": (quota(requests_cpu="500m"), [], {}),
    "pods": (quota(pods=3), [], {}),
    "no quota at all": ({"apiVersion": "v1", "kind": "ResourceQuota", "spec": None}, [], {}),
    "no LimitRange at all": ({"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": [3, {"max": []}]}}, [], {}),
    "another object": ({"apiVersion": "v1", "kind": "ConfigMap"}, [], {}),
}


REMEDIES = {
    "alone": (quota(limits_nvidia_com__gpu=1), f"Write requests.{GPU}."),
    "with one that counts": (
        quota(limits_nvidia_com__gpu=1, requests_nvidia_com__gpu=4),
        f"Remove it: requests.{GPU}: 4 is present and applies.",
    ),
    "with a null one": (
        quota(limits_nvidia_com__gpu=1, requests_nvidia_com__gpu=None),
        f"Remove it: requests.{GPU}: 0 is present and applies.",
    ),
    "with an invalid one": (
        quota(limits_nvidia_com__gpu=1, requests_nvidia_com__gpu="-4"),
        f"Write requests.{GPU}.",
    ),
}


@pytest.mark.parametrize(("data", "want"), REMEDIES.values(), ids=REMEDIES)
def test_the_fix_for_a_key_that_is_never_counted(data: Json, want: str) -> None:
    assert lint_object(data)[0].fix == want


@pytest.mark.parametrize(("data", "want", "instead"), TRAPS.values(), ids=TRAPS)
def test_findings(data: Json, want: list[str], instead: Json) -> None:
    assert [finding.code for finding in lint_object(data)] == want
    if want:
        assert fixed(data)["spec"] == instead
        assert lint_object(fixed(data)) == []


@pytest.mark.parametrize("default", [None, {GPU: 1}], ids=["the maximum", "a default"])
def test_the_fix_removes_a_minimum(default: Json | None) -> None:
    given = limit_range({"max": {GPU: 2}, "min": {GPU: 1}} | ({"default": default} if default else {}))

    assert "Remove min: a default of zero is below 1." in lint_object(given)[0].fix
    assert "min" not in fixed(given)["spec"]["limits"][0]


SIDES = {side: {GPU: 1, CLASS: 1} for side in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")}
TRAPPED = [
    limit_range(SIDES, SIDES | {"type": "Pod"}),
    scoped(quota(**{key: 1 for name in (GPU, MILLI, CLASS) for key in (name, f"requests.{name}")}, **{DEVICES: 1})),
]


def places(value: Any, *at: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, *at, key)


PLACES = [
    (data, place) for data in TRAPPED for place in places(data) if place and place[0] not in ("apiVersion", "kind")
]


def put(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at one path."""
    if not place:
        return value
    whole = dict(data) if isinstance(data, dict) else list(data)
    whole[place[0]] = put(data[place[0]], place[1:], value)
    return whole


@settings(max_examples=300)
@given(st.sampled_from(PLACES), st.none() | anything())
def test_any_content_is_linted_without_an_error(spoilt: tuple[Json, tuple[Any, ...]], value: Any) -> None:
    data = put(*spoilt, value)
    (findings,) = lint_all_objects([data], ["a"])
    assert all(isinstance(finding, Finding) for finding in findings)
    list(find_object_errors(data))
    list(find_object_errors(fix_object(data, findings, ["a"])))


def test_another_quota_of_the_namespace_may_count_every_form() -> None:
    gpus, all_forms = quota(requests_nvidia_com__gpu=2), quota(**{"requests_rightslice_dev__gpu-milli": 2000})
    assert lint_all_objects([gpus, all_forms]) == [[], []]
    assert codes(review(gpus, nodes=[all_forms | {"metadata": {"name": "all", "namespace": "team"}}])) == []


def in_scope(data: Json, *scopes: str, **selector: Any) -> Json:
    """Return the quota with scopes."""
    expressions = [{"scopeName": "PriorityClass", "operator": "In", **selector}] if selector else []
    some = {"scopes": list(scopes), "scopeSelector": {"matchExpressions": expressions}}
    return data | {"spec": data["spec"] | (some if scopes or selector else {})}


GPUS, THOUSANDTHS = quota(requests_nvidia_com__gpu=4), quota(**{"requests_rightslice_dev__gpu-milli": 4000})
COUNTED: dict[str, tuple[Json, Json, bool]] = {
    "by one that counts all pods": (GPUS, THOUSANDTHS, True),
    "by one of some pods": (GPUS, in_scope(THOUSANDTHS, values=["low"]), False),
    "by one of pods without a deadline": (GPUS, in_scope(THOUSANDTHS, "NotTerminating"), False),
    "both of the same pods": (in_scope(GPUS, values=["a", "b"]), in_scope(THOUSANDTHS, values=["b", "a"]), True),
    "of some pods by one of other pods": (in_scope(GPUS, values=["a"]), in_scope(THOUSANDTHS, values=["b"]), False),
    "of some pods by one of all": (in_scope(GPUS, "Terminating"), THOUSANDTHS, True),
}


@pytest.mark.parametrize(("gpus", "thousandths", "counted"), COUNTED.values(), ids=COUNTED)
def test_another_quota_covers_a_gpu_quota_if_it_counts_the_same_pods(
    gpus: Json, thousandths: Json, *, counted: bool
) -> None:
    other = thousandths | {"metadata": {"name": "other", "namespace": "team"}}
    want = [] if counted else ["GPU-Q402"]
    assert [found.code for found in lint_all_objects([gpus, other])[0]] == want
    assert codes(review(gpus, nodes=[other])) == [f"warn {code}" for code in want]


def test_a_fix_adds_nothing_without_a_finding() -> None:
    mistyped = quota(requests_nvidia_com__gpu=4, **{"limits_nvidia_com__mig-1g_10gb": 8})
    findings, _ = lint_all_objects([mistyped, THOUSANDTHS])
    assert [finding.code for finding in findings] == ["GPU-Q401"]
    assert fix_object(mistyped, findings)["spec"] == {"hard": {f"requests.{GPU}": 4, f"requests.{SLICE}": 8}}


def test_a_minimum_of_pods_and_the_default_that_hides_it_are_both_reported() -> None:
    bound, gives = limit_range({"type": "Pod", "min": {GPU: "1"}}), limit_range({"default": {GPU: "1"}})
    findings = lint_all_objects([bound, gives])
    assert [[finding.code for finding in found] for found in findings] == [["GPU-L304"], ["GPU-L303"]]
    assert findings[0][0].message.startswith("without the default of 1, a bound of type Pod rejects every pod")


AMOUNTS = st.dictionaries(st.sampled_from([GPU, SLICE, MILLI, CLASS, "cpu"]), st.sampled_from([0, 1, 2, None]))
BOUNDS = st.fixed_dictionaries({}, optional=dict.fromkeys(SIDES, AMOUNTS))
RANGES = st.builds(
    limit_range, BOUNDS, st.fixed_dictionaries({"type": st.just("Pod")}, optional={"max": AMOUNTS, "min": AMOUNTS})
)
KEYS = [
    "pods",
    DEVICES,
    *(f"{side}{name}" for name in (GPU, SLICE, MILLI, CLASS) for side in ("", "requests.", "limits.")),
]
HARD = st.dictionaries(st.sampled_from(["pods", DEVICES, *KEYS]), st.sampled_from([0, 2, 4, "1500m", None]))
QUOTAS = st.builds(
    lambda hard, scopes: in_scope(quota() | {"spec": {"hard": hard}}, *scopes),
    HARD,
    st.sampled_from([(), ("NotTerminating",), ("BestEffort",), ("NotTerminating", "BestEffort")]),
)


@settings(max_examples=300)
@given(st.lists(RANGES | QUOTAS, max_size=4))
def test_objects_fixed_together_have_no_findings(objects: list[Json]) -> None:
    objects = [one for one in objects if not any(wrong.rejected for wrong in find_object_errors(one))]
    each = zip(objects, lint_all_objects(objects), strict=True)
    after = [fix_object(one, findings) if findings else one for one, findings in each]
    lists = [one["items"] if one["kind"] == "List" else [one] for one in after]
    assert [finding for found in lint_all_objects([one for items in lists for one in items]) for finding in found] == []


NOT_WRITTEN = {
    "in a quota": (quota(requests_nvidia_com__gpu=None), ("spec", "hard", f"requests.{GPU}")),
    "in a LimitRange": (limit_range({"max": {GPU: None}}), ("spec", "limits", 0, "max", GPU)),
}


@pytest.mark.parametrize(("data", "path"), NOT_WRITTEN.values(), ids=NOT_WRITTEN)
def test_a_null_amount_is_zero(data: Json, path: tuple[Any, ...]) -> None:
    (findings,) = find_object_errors(data)
    assert (findings.path, findings.rejected) == (path, False)
    assert findings.message == "null, which the API server reads as 0"


def test_another_limit_range_of_the_namespace_may_set_zero() -> None:
    bound, none = limit_range({"type": "Pod", "max": {GPU: 4}}), limit_range(NONE)
    none["metadata"] = none["metadata"] | {"name": "none"}
    elsewhere = none | {"metadata": none["metadata"] | {"namespace": "other"}}

    assert lint_all_objects([none, bound]) == [[], []]
    assert [finding.code for found in lint_all_objects([elsewhere, bound]) for finding in found] == ["GPU-L304"]
    assert codes(review(bound, nodes=[none])) == []
    assert codes(review(bound, nodes=[elsewhere])) == ["warn GPU-L304"]
    assert codes(review(bound, nodes=[none | {"metadata": bound["metadata"]}], operation="UPDATE")) == ["warn GPU-L304"]


def test_fields_of_the_api_server_are_omitted() -> None:
    stored = limit_range({"max": {GPU: "4"}})
    stored["metadata"] |= {"uid": "1", "resourceVersion": "7", "labels": {"a": "b"}}
    assert fixed(stored)["metadata"] == {"name": "lr", "namespace": "team", "labels": {"a": "b"}}


def test_applying_one_returns_warnings_only() -> None:
    assert codes(review(limit_range({"max": {GPU: 4}}))) == ["warn GPU-L301"]
    assert codes(review(quota(requests_nvidia_com__gpu=2), operation="UPDATE")) == ["warn GPU-Q402"]


def test_claims_get_their_own_quota_if_pods_stay_under_the_scopes() -> None:
    data = scoped(quota(pods=3, count__resourceclaims_resource_k8s_io=1))
    assert [finding.code for finding in lint_object(data)] == ["GPU-Q401"]
    pods, claims = fixed(data)["items"]
    assert (pods["spec"], pods["metadata"]) == ({"hard": {"pods": 3}, "scopes": ["NotTerminating"]}, data["metadata"])
    assert claims["spec"] == {"hard": {"count/resourceclaims.resource.k8s.io": 1}}
    assert claims["metadata"]["name"] == "quota-claims"


@pytest.mark.parametrize(
    "key",
    ["gpu.exmaple.com.deviceclass.resource.k8s.io/devices", "deviceclass.resource.kubernetes.io/gpu.exmaple.com"],
)
def test_a_class_missing_from_the_cluster_counts_nothing(key: str) -> None:
    data, classes = quota(**{key: "1"}), ["gpu.example.com", "other"]
    said = [finding.fix for finding in lint_object(data, (), classes) if "has no DeviceClass" in finding.message]
    assert said == ["Write gpu.example.com."]
    assert lint_object(fix_object(data, lint_object(data, (), classes), classes), (), classes) == []
    assert not any("has no DeviceClass" in finding.message for finding in lint_object(data)), "the classes are unknown"


def test_an_unknown_class_lists_known_ones() -> None:
    (finding,) = lint_object(quota(**{DEVICES: "1"}), (), ["z4", "z1", "z3", "z2"])
    assert finding.fix == "Use one of: z1, z2, z3 and 1 more."


def test_applying_a_quota_of_an_unknown_class_returns_a_warning() -> None:
    known = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "b"}, "spec": {}}
    assert codes(review(quota(**{DEVICES: "1"}), nodes=[known])) == ["warn GPU-Q401"]
    assert codes(review(quota(**{DEVICES: "1"}))) == []
