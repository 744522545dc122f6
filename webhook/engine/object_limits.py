"""The largest objects that are evaluated while the API server waits.

Other requests wait meanwhile, so larger objects are not evaluated. A new pod beyond `model.object_bounds` is denied if
a policy enforces `security`: a webhook that fails open must not admit pods that were not evaluated. Everything else
beyond them is an HTTP error, and `failurePolicy` decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from webhook.engine.linting import LINTED_KINDS
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.settle import settle
from webhook.engine.templates import read_templates
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.object_bounds import PartCount, exceeded_bound, find_exceeded_bound
from webhook.policy.policy_set import PolicySet

MAX_VALUES = 30_000
"""JSON values of one review: decoding and reading cost up to a microsecond each. Reviews of real pods have at most
2,000, and those of workloads at most 2,500."""

MAX_SKIPPED_VALUES = 1_000_000
"""Values of a review that can be passed over within the time; an API server sends at most as many."""

VALUES_LIMIT = f"{MAX_VALUES} values"


def count_values(body: bytes) -> int:
    """Return at least the number of JSON values of a review; commas and brackets in its texts count too.

    >>> count_values(b'{"a":[1,2,{}]}')
    6
    """
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def find_exceeded_limit(request: AdmissionRequest, policies: PolicySet) -> str:
    """Return the bound that an object exceeds, for example "150 containers"; "" if it can be evaluated."""
    if request.pod is not None:
        pods = [request.pod] if request.old_pod is None else [request.pod, request.old_pod]
        return next(filter(None, [find_exceeded_bound([pod]) for pod in pods]), "")
    if request.kind in LINTED_KINDS and not request.group:
        return exceeded_bound(_count_namespace_limits(request.load_object()))
    # Each template is read only once those before it are counted.
    return find_exceeded_bound(template.pod for template in read_templates(request, policies.workload_kinds))


REDUCE_POD = "Reduce the pod's size."


def deny_oversized_pod(
    request: AdmissionRequest, message: str, policies: PolicySet, now: datetime, fix: str = REDUCE_POD
) -> Decision:
    """Return the decision for a pod that is too large to evaluate; without findings if no policy denies it.

    Matching is part of evaluation, so every policy denies it that enforces `security`. A pod that was as large before
    is not denied, because it must still get its finalizers and be deleted.
    """
    if request.pod is None or (request.old_pod is not None and find_exceeded_bound([request.old_pod])):
        return Decision()
    enforcing = [each.name for each in policies.policies if each.security and each.security.mode is PolicyMode.ENFORCE]
    finding = PolicyFinding("GPU-S401", (), message, fix)
    reported = [((PolicyMode.ENFORCE, name), finding) for name in enforcing]
    findings, exempted = settle(reported, policies.exemptions, request, request.pod, now)
    return Decision(findings, exempted, policies=tuple(enforcing), involves_gpus=bool(findings))


def _count_namespace_limits(data: object) -> Iterator[PartCount]:
    """Yield the counts of a LimitRange or ResourceQuota in any form; its linter ignores what is malformed."""
    spec = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(spec, dict):
        return
    yield "keys of a quota", _size(spec.get("hard"))
    items = spec.get("limits")
    for item in items if isinstance(items, list) else ():
        yield "entries of a LimitRange", 1 + sum(map(_size, item.values())) if isinstance(item, dict) else 1


def _size(value: object) -> int:
    return len(value) if isinstance(value, dict) else 0
