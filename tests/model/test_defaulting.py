"""defaulting: objects of files get the API server's defaults."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_pod
from webhook.model.defaulting import default_limit_range, default_object
from webhook.model.objects import LimitRange

JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["limits", "requests"]), inner),
    max_leaves=6,
)


def resources(**given: Any) -> Any:
    pod = make_pod().build()
    pod["spec"]["containers"][0]["resources"] = given
    return default_object(pod, "team")["spec"]["containers"][0]["resources"]


CASES = {
    "requests follow limits": ({"limits": {"a": 1}}, {"limits": {"a": 1}, "requests": {"a": 1}}),
    "an explicit request is not changed": (
        {"limits": {"a": 2, "b": 3}, "requests": {"a": 1, "c": 4}},
        {"limits": {"a": 2, "b": 3}, "requests": {"a": 1, "b": 3, "c": 4}},
    ),
    "null requests": (
        {"limits": {"a": 1}, "requests": None},
        {"limits": {"a": 1}, "requests": {"a": 1}},
    ),
    "no limits": ({"requests": {"a": 1}}, {"requests": {"a": 1}}),
    "invalid resources are not changed": ({"limits": [1], "requests": "x"}, {"limits": [1], "requests": "x"}),
}


@pytest.mark.parametrize(("given_", "want"), CASES.values(), ids=CASES)
def test_resources(given_: Any, want: Any) -> None:
    assert resources(**given_) == want


def test_init_containers_get_defaults_and_templates_do_not() -> None:
    limits = {"limits": {"a": 1}}
    pod = make_pod().container("setup", kind="initContainers", resources=limits).build()
    assert default_object(pod, "x")["spec"]["initContainers"][0]["resources"]["requests"] == {"a": 1}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": pod}}
    assert default_object(workload, "x")["spec"] == workload["spec"]


def test_the_namespace_is_set() -> None:
    assert default_object({"kind": "Pod", "metadata": None}, "team")["metadata"] == {"namespace": "team"}


@given(JSON, JSON)
def test_any_object_is_accepted_and_left_unchanged(container: Any, spec: Any) -> None:
    for data in ({"kind": "Pod", "spec": {"containers": [container]}}, {"kind": "Pod", "spec": spec}):
        before = copy.deepcopy(data)
        first = default_object(data, "x")
        assert data == before
        assert default_object(first, "x") == first


PORTS: dict[str, tuple[Any, bool, Any]] = {
    "a port on the host's network": ([{"containerPort": 80}], True, [{"containerPort": 80, "hostPort": 80}]),
    "an explicit host port": ([{"containerPort": 80, "hostPort": 81}], True, [{"containerPort": 80, "hostPort": 81}]),
    "a port on the pod's network": ([{"containerPort": 80}], False, [{"containerPort": 80}]),
    "invalid ports": ([7, {}], True, [7, {}]),
}


@pytest.mark.parametrize(("ports", "on_host", "want"), PORTS.values(), ids=PORTS)
def test_ports(ports: Any, on_host: bool, want: Any) -> None:
    pod = make_pod().spec(hostNetwork=on_host, containers=[{"name": "a", "ports": ports}]).build()
    assert default_object(pod, "team")["spec"]["containers"][0]["ports"] == want


GPU = "nvidia.com/gpu"
DEFAULTS: dict[str, tuple[Json, Json, Json]] = {
    "max sets the default too": ({"max": {GPU: "4"}}, {GPU: "4"}, {GPU: "4"}),
    "max with a default of zero": ({"max": {GPU: "4"}, "default": {GPU: "0"}}, {GPU: "0"}, {GPU: "0"}),
    "min sets the default request only": ({"min": {GPU: "1"}}, {}, {GPU: "1"}),
    "max takes precedence over min": ({"min": {GPU: "1"}, "max": {GPU: "4"}}, {GPU: "4"}, {GPU: "4"}),
    "an explicit default request": (
        {"max": {"cpu": "4"}, "defaultRequest": {"cpu": "1"}, "min": {"cpu": "500m"}},
        {"cpu": "4"},
        {"cpu": "1"},
    ),
    "resources are independent": ({"max": {"cpu": "4"}, "min": {GPU: "1"}}, {"cpu": "4"}, {"cpu": "4", GPU: "1"}),
}


@pytest.mark.parametrize(("item", "default", "request_"), DEFAULTS.values(), ids=DEFAULTS)
def test_defaults_of_a_container_item(item: Json, default: Json, request_: Json) -> None:
    written = msgspec.convert({"spec": {"limits": [{"type": "Container", **item}]}}, LimitRange)
    (stored,) = default_limit_range(written).spec.limits
    assert (stored.default, stored.default_request) == (default, request_)
    assert default_limit_range(default_limit_range(written)) == default_limit_range(written)


def test_a_pod_item_has_no_defaults() -> None:
    written = msgspec.convert({"spec": {"limits": [{"type": "Pod", "max": {GPU: "4"}}]}}, LimitRange)
    assert default_limit_range(written) == written
