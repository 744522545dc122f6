"""The findings of `check` about a random pod, compared with an API server's: no false rejection, and none missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import orjson

from tests.cluster.dryrun import ApiAnswer
from tests.cluster.predicted_outcomes import API_MINOR
from tests.example_cluster import NO_USAGE, NOW, policies_of, policy, request_of, view_of
from webhook.audit.adjusted_view import AdjustedView
from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import parse_objects
from webhook.engine.decide import decide
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.report.results import CheckResult

Json = dict[str, Any]
POLICIES = policies_of(
    policy("mode: enforce\nlimits: {limitRanges: evaluate, resourceQuotas: evaluate, limitRangeInjected: keep}")
)
LIMIT_RANGE, QUOTA, BY_DEFAULT = "GPU-L201", "GPU-Q301", "GPU-L203"


class OrderedView(AdjustedView):
    """A view with the LimitRanges of one namespace in another order: LimitRanger's own is not defined."""

    _order = NamespaceLimitRanges()

    def ranges(self, namespace: str) -> NamespaceLimitRanges:
        """Return the LimitRanges in this order."""
        return self._order


def view_of_namespace(ranges: Sequence[Json], quotas: Sequence[Json], classes: Sequence[Json]) -> ClusterView:
    """Return a view of stored LimitRanges and quotas, and of RuntimeClasses and PriorityClasses."""
    kinds = ["LimitRange"] * len(ranges) + ["ResourceQuota"] * len(quotas)
    stored = [{"apiVersion": "v1", "kind": kind} | item for kind, item in zip(kinds, [*ranges, *quotas], strict=True)]
    return view_of(*stored, *classes).with_api_minor(API_MINOR)


def find_wrong_findings(
    data: Json, namespace: str, view: ClusterView, answer: ApiAnswer, alone: ApiAnswer
) -> list[str]:
    """Return what is wrong with the findings about a pod; [] if they agree with the API server.

    Args:
        data: The pod as it is written.
        answer: The API server's answer in the pod's namespace.
        alone: Its answer in a namespace without LimitRanges and quotas.
    """
    wrong: list[str] = []
    for result in _results(data, namespace, view):
        wrong = [*_missing(result, answer, alone), *_unnamed(result.decision.denials, data)]
        if not wrong:
            break
    if answer.status == 201:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": answer.body["metadata"], "spec": answer.body["spec"]}
        decision = decide(request_of(pod), POLICIES, view, NO_USAGE, NOW)
        wrong += [f"webhook: {finding}" for finding in decision.denials]
    return wrong


def _results(data: Json, namespace: str, view: ClusterView) -> Iterator[CheckResult]:
    """Yield the results of `check` for every order of the LimitRanges."""
    [source] = parse_objects("pod.json", orjson.dumps({"apiVersion": "v1", "kind": "Pod", **data}))
    for order in permutations(view.ranges(namespace)):
        ordered = OrderedView(view)
        ordered._order = NamespaceLimitRanges(order, before_pod_level=view.ranges(namespace).before_pod_level)
        [result] = evaluate_all([source], EvaluationContext(POLICIES, ordered, NOW, namespace=namespace))
        yield result


def _missing(result: CheckResult, answer: ApiAnswer, alone: ApiAnswer) -> list[str]:
    """Return how the verdict about a pod differs from the API server's."""
    codes = {finding.code for finding in result.decision.denials}
    message = answer.body.get("message", "")
    if answer.status == 201:
        invalid = [f"not invalid: {result.reason}"] if result.invalid else []
        return invalid + [f"false rejection: {finding}" for finding in result.decision.denials]
    if answer.status == 400:
        return [] if result.invalid or codes else ["unreadable, and not reported"]
    if alone.status == 422:
        return [] if result.invalid or codes else ["invalid, and not reported"]
    if answer.status == 422:
        return [] if BY_DEFAULT in codes else ["a LimitRange makes it invalid, and is not named"]
    want = QUOTA if " quota: " in message else LIMIT_RANGE
    return [] if want in codes else [f"{want} is missing: {sorted(codes)}"]


def _unnamed(denials: Sequence[Finding], data: Json) -> list[str]:
    """Return the findings about an amount that the pod does not set, and that name no LimitRange."""
    return [
        f"blamed on an amount that nobody wrote: {each}"
        for each in denials
        if len(each.path) == 6 and not _is_written(each.path, data) and "LimitRange" not in each.message
    ]


def _is_written(path: FieldPath, data: Json) -> bool:
    """Return whether a pod sets an amount; a limit sets the request too."""
    holder: Any = data
    for step in path[:3]:
        holder = holder[step]
    resources = holder.get("resources", {})
    sides = ("limits",) if path[4] == "limits" else ("limits", "requests")
    return any(path[5] in resources.get(side, {}) for side in sides)
