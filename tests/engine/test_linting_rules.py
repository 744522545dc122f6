"""Lint: errors of objects that the API server rejects; `tests/cluster/test_lint_findings.py` compares the messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json
from tests.engine.test_linting import GPU, limit_range
from webhook.engine.linting.validation import find_object_errors
from webhook.model.field_paths import format_path

RATIO = "maxLimitRequestRatio"


def scoped(*scopes: str, selector: Any = None, **hard: str) -> Json:
    """Return a quota with scopes; `__` in a key is a slash, `_` a dot."""
    keys = {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}
    spec = {"hard": keys, "scopes": list(scopes)} | (
        {"scopeSelector": {"matchExpressions": selector}} if selector else {}
    )
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec}


REFUSED: dict[str, tuple[Json, str, str]] = {
    "a minimum above the maximum": (
        limit_range({"type": "Pod", "min": {"cpu": "5"}, "max": {"cpu": "4"}}),
        "spec.limits[0].min.cpu",
        'Invalid value: "5": min value 5 is greater than max value 4',
    ),
    "a default above the maximum": (
        limit_range({"max": {GPU: "1"}, "default": {GPU: "2"}}),
        f"spec.limits[0].default['{GPU}']",
        'Invalid value: "1": default value 2 is greater than max value 1',
    ),
    "a default below the minimum": (
        limit_range({"min": {"memory": "2Gi"}, "default": {"memory": "1Gi"}}),
        "spec.limits[0].default.memory",
        'Invalid value: "2Gi": min value 2Gi is greater than default value 1Gi',
    ),
    "a default request above the default": (
        limit_range({"default": {"cpu": "1"}, "defaultRequest": {"cpu": "1500m"}}),
        "spec.limits[0].defaultRequest.cpu",
        'Invalid value: "1500m": default request value 1500m is greater than default limit value 1',
    ),
    "a default request above the maximum, which is the default": (
        limit_range({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
        "spec.limits[0].defaultRequest.cpu",
        'Invalid value: "2": default request value 2 is greater than max value 1',
    ),
    "a default request below the minimum": (
        limit_range({"min": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
        "spec.limits[0].defaultRequest.cpu",
        'Invalid value: "1": min value 2 is greater than default request value 1',
    ),
    "a default request of GPUs that is not the default": (
        limit_range({"default": {GPU: "2"}, "defaultRequest": {GPU: "1"}}),
        f"spec.limits[0].defaultRequest['{GPU}']",
        f'Invalid value: "1": default value 2 must equal to defaultRequest value 1 in {GPU}',
    ),
    "two items of one type": (
        limit_range({"max": {"cpu": "4"}}, {"max": {"memory": "1Gi"}}),
        "spec.limits[1].type",
        'Duplicate value: "Container"',
    ),
    "a type that is unknown": (
        limit_range({"type": "Job", "max": {"cpu": "4"}}),
        "spec.limits[0].type",
        'Invalid value: "Job": must be a standard limit type or fully qualified',
    ),
    "a default in an item of type Pod": (
        limit_range({"type": "Pod", "default": {"cpu": "4"}}),
        "spec.limits[0].default",
        "Forbidden: may not be specified when `type` is 'Pod'",
    ),
    "a claim without storage": (
        limit_range({"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}),
        "spec.limits[0].limits",
        "Required value: either minimum or maximum storage value is required, but neither was provided",
    ),
    "a ratio below one": (
        limit_range({RATIO: {"cpu": "500m"}}),
        f"spec.limits[0].{RATIO}.cpu",
        'Invalid value: "500m": ratio 500m is less than 1',
    ),
    "a ratio that the bounds make impossible": (
        limit_range({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "4"}, RATIO: {"cpu": "3"}}),
        f"spec.limits[0].{RATIO}.cpu",
        'Invalid value: "3": ratio 3 is greater than max/min = 2.000000',
    ),
    "a name without a prefix": (
        limit_range({"max": {"gpu": "4"}}),
        "spec.limits[0].max.gpu",
        'Invalid value: "gpu": must be a standard resource for containers',
    ),
    "a quota's key in a LimitRange": (
        limit_range({"type": "Pod", "max": {f"requests.{GPU}": "4"}}),
        f"spec.limits[0].max['requests.{GPU}']",
        f'Invalid value: "requests.{GPU}": doesn\'t follow extended resource name standard',
    ),
    "a quota below zero": (scoped(pods="-1"), "spec.hard.pods", ""),
    "a quota key that is no resource": (
        scoped(gpu="4"),
        "spec.hard.gpu",
        'Invalid value: "gpu": must be a standard resource for quota',
    ),
    "a quota of a fraction of a pod": (
        scoped(pods="1500m"),
        "spec.hard.pods",
        'Invalid value: "1500m": must be an integer',
    ),
    "scopes that exclude each other": (
        scoped("Terminating", "NotTerminating", pods="4"),
        "spec.scopes",
        'Invalid value: ["Terminating","NotTerminating"]: conflicting scopes',
    ),
    "a scope that is unknown": (
        scoped("Late", pods="4"),
        "spec.scopes",
        'Invalid value: ["Late"]: unsupported scope',
    ),
    "a scope that a resource does not allow": (
        scoped("BestEffort", requests_cpu="4"),
        "spec.scopes",
        'Invalid value: ["BestEffort"]: unsupported scope applied to resource',
    ),
    "huge pages in a quota with a scope": (
        scoped("PriorityClass", requests_nvidia_com__gpu="4", **{"hugepages-2Mi": "1Gi"}),
        "spec.scopes",
        'Invalid value: ["PriorityClass"]: unsupported scope applied to resource',
    ),
    "requests of huge pages in a quota with a scope": (
        scoped("NotTerminating", **{"requests_hugepages-2Mi": "1Gi"}),
        "spec.scopes",
        'Invalid value: ["NotTerminating"]: unsupported scope applied to resource',
    ),
    "an operator without values": (
        scoped(selector=[{"scopeName": "PriorityClass", "operator": "In"}], pods="4"),
        "spec.scopeSelector.matchExpressions[0].values",
        "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
    ),
}
TAKEN = {
    "an amount below zero in a LimitRange": limit_range({"min": {"cpu": "-1"}}),
    "bounds in order": limit_range(
        {"min": {"cpu": "1"}, "default": {"cpu": "2"}, "max": {"cpu": "4"}, RATIO: {"cpu": "4"}},
        {"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "4"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
        {"type": "example.com/other", "max": {"cpu": "1"}},
    ),
    "GPUs by scope": scoped(
        "NotTerminating",
        selector=[{"scopeName": "PriorityClass", "operator": "Exists"}],
        requests_nvidia_com__gpu="4",
        pods="4",
    ),
    "keys of many kinds": scoped(
        count__pods="4",
        requests_nvidia_com__gpu="1500m",
        services_nodeports="1",
        requests_storage="1Gi",
        **{"requests_hugepages-2Mi": "2Mi"},
    ),
}


@pytest.mark.parametrize(("data", "place", "words"), REFUSED.values(), ids=REFUSED)
def test_an_object_that_the_api_server_rejects_is_an_error(data: Json, place: str, words: str) -> None:
    found = {format_path(one.path): one for one in find_object_errors(data)}
    assert found[place].rejected
    assert words in "; ".join(one.message for one in find_object_errors(data))


@pytest.mark.parametrize("data", TAKEN.values(), ids=TAKEN)
def test_an_object_that_the_api_server_accepts_is_no_error(data: Json) -> None:
    assert list(find_object_errors(data)) == []
