"""Random namespaces and pods, evaluated by an API server and by our code, and a description of every difference."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.cluster.compared_findings import find_wrong_findings, view_of_namespace
from tests.cluster.dryrun import NO_LABELS, ApiAnswer, DryRunClient, open_dry_run_client
from tests.cluster.predicted_outcomes import matches_answer, parse_limit_ranges, parse_quotas, predict_outcomes
from tests.cluster.random_objects import limit_range, pod, quota, usage, with_quota_scope_fields

Json = dict[str, Any]
NAMESPACE_BATCH = 20
"""Number of namespaces that are created in one batch."""


class NamespaceObjects(NamedTuple):
    """A namespace with its LimitRanges and quotas as the API server stored them."""

    name: str
    ranges: list[Json]
    quotas: list[Json]


class ComparedNamespace(NamedTuple):
    """A namespace, another one without LimitRanges and quotas, and the RuntimeClasses and PriorityClasses."""

    namespace: NamespaceObjects
    alone: str
    classes: list[Json]


class ComparisonResult(NamedTuple):
    """The count of pods by HTTP status, and every difference."""

    statuses: dict[int, int]
    differences: list[str]


async def compare_pods(url: str, ca: Path, token: str, *, seed: str, namespaces: int, pods: int) -> ComparisonResult:
    """Compare random pods in random namespaces, half of them while there is a default PriorityClass."""
    random, result = Random(seed), ComparisonResult({}, [])
    async with open_dry_run_client(url, ca, token) as client:
        run = secrets.token_hex(3)
        await client.create_marker_namespace(f"marker-{run}")
        await client.add_namespace(f"alone-{run}")
        try:
            for start in range(0, namespaces, NAMESPACE_BATCH):
                if start < namespaces / 2 <= start + NAMESPACE_BATCH:
                    await client.set_default_priority_class("usual", default=True)
                names = [f"random-{run}-{n}" for n in range(start, min(namespaces, start + NAMESPACE_BATCH))]
                created = [await create_random_namespace(client, random, name) for name in names]
                await client.wait_for_admission_caches()
                classes = await client.list_classes()
                for namespace in created:
                    compared = ComparedNamespace(namespace, f"alone-{run}", classes)
                    await _compare_in_namespace(compared, client, random, pods, result)
                    await client.send("DELETE", f"/api/v1/namespaces/{namespace.name}")
        finally:
            await client.set_default_priority_class("usual", default=False)
    return result


async def create_random_namespace(
    client: DryRunClient, random: Random, name: str, *, labels: Mapping[str, str] = NO_LABELS, more: Sequence[Json] = ()
) -> NamespaceObjects:
    """Create a namespace with random LimitRanges and quotas, and return those that the API server accepts.

    Args:
        labels: Labels of the namespace.
        more: Quotas to add to the random ones.
    """
    await client.add_namespace(name, labels)
    path = f"/api/v1/namespaces/{name}"
    ranges = [limit_range(random, f"range-{n}") for n in range(random.choice((0, 1, 1, 1, 2, 2, 3, 4)))]
    range_answers = [await client.send("POST", f"{path}/limitranges", body) for body in ranges]
    quotas = [quota(random, f"quota-{n}") for n in range(random.choice((0, 0, 1, 1, 2, 3)))]
    quotas += more
    quota_answers = [await client.send("POST", f"{path}/resourcequotas", body) for body in quotas]
    counted = await client.wait_for_quota_status(name, sum(answer.status == 201 for answer in quota_answers))
    for item in counted:
        change = {"status": {"used": usage(random, item["status"].get("used", {}))}}
        item |= (await client.send("PATCH", f"{path}/resourcequotas/{item['metadata']['name']}/status", change)).body
    return NamespaceObjects(name, [answer.body for answer in range_answers if answer.status == 201], counted)


async def _compare_in_namespace(
    compared: ComparedNamespace, client: DryRunClient, random: Random, count: int, result: ComparisonResult
) -> None:
    namespace, classes = compared.namespace, compared.classes
    ranges, quotas = parse_limit_ranges(namespace.ranges), parse_quotas(namespace.quotas)
    view = view_of_namespace(namespace.ranges, namespace.quotas, classes)
    pods = [with_quota_scope_fields(random, pod(random, f"pod-{n}")) for n in range(count)]
    answers = await client.dry_run_pods(namespace.name, pods)
    alone = await client.dry_run_pods(compared.alone, pods)
    for data, answer, answer_alone in zip(pods, answers, alone, strict=True):
        result.statuses[answer.status] = result.statuses.get(answer.status, 0) + 1
        with_classes = view.pod_classes.add_to_data(data)
        wrong = find_wrong_findings(data, namespace.name, view, answer, answer_alone)
        if not any(matches_answer(outcome, answer) for outcome in predict_outcomes(with_classes, ranges, quotas)):
            wrong.append(f"predicted: {next(predict_outcomes(with_classes, ranges, quotas))}")
        if wrong:
            result.differences.append(_describe_difference(namespace, data, answer, wrong))


def _describe_difference(namespace: NamespaceObjects, data: Json, answer: ApiAnswer, wrong: Sequence[str]) -> str:
    """Describe a difference with everything needed to reproduce it."""
    stored = {"limitRanges": [item["spec"] for item in namespace.ranges]} | {
        "quotas": [{"spec": item["spec"], "status": item["status"]} for item in namespace.quotas]
    }
    outcome = answer.body.get("message") or answer.body["spec"]
    ours = "\n".join(wrong)
    return f"\n{json.dumps(stored)}\n{json.dumps(data['spec'])}\nAPI server: {answer.status} {outcome}\nours: {ours}\n"
