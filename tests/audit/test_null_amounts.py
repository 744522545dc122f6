"""Null amounts in files: they count as the API server's zero, and `check` says that null was written."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_pod
from tests.example_cluster import policies_of, policy, view_of, whole_node
from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import parse_objects
from webhook.model.field_paths import format_path
from webhook.report.results import CheckResult, CheckVerdict

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "r", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "default": {GPU: "1", "cpu": "1", "memory": "1Gi"}}]},
}
CONTEXT = EvaluationContext(
    policies_of(policy("mode: enforce\nlimits: {limitRanges: evaluate, perContainer: [{resource: cpu, min: 1m}]}")),
    view_of(make_namespace("team"), RANGE, whole_node()),
    NOW,
)


def evaluate(data: Json) -> CheckResult:
    [found] = evaluate_all(parse_objects("x.json", orjson.dumps(data)), CONTEXT)
    return found


def pod_with(**sides: Any) -> Json:
    """Return a pod whose container has these limits and requests."""
    pod = make_pod("p").build()
    pod["metadata"]["namespace"] = "team"
    pod["spec"]["containers"][0]["resources"] = sides
    return pod


def deployment(pod: Json) -> Json:
    metadata = {"name": "d", "namespace": "team"}
    spec = {"template": {"spec": pod["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def test_a_null_amount_is_named_as_written_and_as_the_api_server_reads_it() -> None:
    result = evaluate(pod_with(limits={GPU: None}))

    assert result.verdict is CheckVerdict.WARNED
    [found] = result.findings
    assert (found.finding.code, found.finding.message) == ("GPU-L107", "null, which the API server reads as 0")
    assert format_path(found.finding.path) == "spec.containers[0].resources.limits['nvidia.com/gpu']"


def test_a_finding_about_the_amount_says_that_it_is_null() -> None:
    result = evaluate(pod_with(limits={GPU: None}, requests={GPU: "1"}))

    [found] = [each.finding for each in result.findings if each.finding.code in ("GPU-L105", "GPU-L107")]
    assert found.code == "GPU-L105"
    assert found.message.endswith("; limits are null, which the API server reads as 0")


def test_the_error_of_an_invalid_pod_says_that_an_amount_is_null() -> None:
    result = evaluate(pod_with(limits={"memory": None}, requests={"memory": "1Gi"}))

    assert result.invalid
    assert result.reason.endswith("spec.containers[0].resources.limits.memory is null, which the API server reads as 0")


AMOUNTS = st.dictionaries(st.sampled_from([GPU, "cpu", "memory"]), st.sampled_from([None, "0", "1"]))


def zeroed(data: Any) -> Any:
    """Return resources with zeros instead of nulls."""
    return {side: {name: "0" if amount is None else amount for name, amount in data[side].items()} for side in data}


@pytest.mark.parametrize("wrap", [copy.deepcopy, deployment], ids=["a Pod", "a Deployment"])
@given(resources=st.fixed_dictionaries({}, optional={"limits": AMOUNTS, "requests": AMOUNTS}))
def test_a_null_decides_like_zero_and_every_null_is_named(wrap: Any, resources: Json) -> None:
    written, zero = wrap(pod_with(**resources)), wrap(pod_with(**zeroed(resources)))
    found, same = evaluate(written), evaluate(zero)

    def plain(result: CheckResult) -> list[tuple[str, str]]:
        codes = [(each.finding.code, each.finding.message.partition("; limits are")[0]) for each in result.findings]
        return [(code, text.partition("; requests are")[0]) for code, text in codes if code != "GPU-L107"]

    assert found.invalid == same.invalid
    assert plain(found) == plain(same)
    said = [found.reason, *(f"{format_path(each.finding.path)} {each.finding.message}" for each in found.findings)]
    for name in {name for amounts in resources.values() for name, amount in amounts.items() if amount is None}:
        assert any(name in sentence and "null, which the API server reads as 0" in sentence for sentence in said)
