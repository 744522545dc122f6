"""The result of `check`: findings for people, one row per object (`-o wide`), and plain data.

`docs/check-output.md` is the contract of the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.decisions import Decision, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path
from webhook.model.findings import Finding
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.offers import GpuOffer, describe_offer, device_of_class
from webhook.policy.workload_kinds import GROUPS_BY_KIND
from webhook.report.results import CheckResult, CheckSummary, CheckVerdict, LocatedFinding, summarize_results
from webhook.report.tables import Column, Table
from webhook.report.text import LABELS, STYLES, Paint, TextStyle, format_gpus, pluralize, sanitize, without_style
from webhook.well_known import Json

MAX_PRODUCTS = 2
"""Products that the meaning of a resource name lists."""

UNKNOWN_OUTCOME = "unknown without the nodes of a cluster"
"""The outcome of an object that slices or shares of nodes could serve, if no nodes are known."""

ADD_CLUSTER = "Add --cluster SNAPSHOT, or --cluster demo"


def check_lines(
    results: Iterable[CheckResult], paint: Paint = without_style, *, least: PolicyMode = PolicyMode.AUDIT
) -> Iterator[str]:
    """Yield the lines about every finding, and about every document that could not be evaluated.

    Args:
        least: Findings of a milder mode are left out.
    """
    for result in results:
        if result.verdict is CheckVerdict.SKIPPED and not result.quiet:
            yield skip_line(result, paint)
        for located in result.findings:
            if located.finding.effective_mode >= least:
                yield from finding_lines(located, result.title, paint)


def report_lines(
    results: Sequence[CheckResult],
    used: PoliciesUsed,
    paint: Paint = without_style,
    least: PolicyMode = PolicyMode.AUDIT,
) -> Iterator[str]:
    """Yield the findings, then the totals and the policies in use: the report for people.

    Args:
        least: Findings of a milder mode are only counted.
    """
    lines = list(check_lines(results, paint, least=least))
    yield from lines
    if lines:
        yield ""
    summary = summarize_results(results)
    yield check_summary_line(summary)
    if least is not PolicyMode.AUDIT and (notes := audit_findings_line(summary)):
        yield notes
    yield from unknown_outcomes_lines(results)
    yield policies_used_line(used)


def finding_lines(located: LocatedFinding, title: str, paint: Paint = without_style) -> Iterator[str]:
    """Yield one finding: location, mode, code and object; field and message; fix and policy."""
    finding = located.finding
    label = paint(LABELS[finding.effective_mode], STYLES[finding.effective_mode])
    yield f"{sanitize(str(located.location))}  {label}  {finding.code}  {sanitize(title)}"
    yield f"  {finding_sentence(finding)}"
    policy_location = f", {located.policy_location}" if located.policy_location else ""
    source = sanitize(f"({finding.policy}{policy_location})") if finding.policy else ""
    last = "  ".join(filter(None, (sanitize(finding.fix), paint(source, TextStyle.FAINT))))
    if last:
        yield f"  {last}"


def finding_sentence(finding: Finding) -> str:
    """Return the field, what must be true, and what was found."""
    path = f"{format_path(finding.path)}: " if finding.path else ""
    return sanitize(f"{path}{finding.message}")


def skip_line(result: CheckResult, paint: Paint = without_style) -> str:
    """Return a line about a document that was not evaluated, and why."""
    label = paint("error", TextStyle.BAD) if result.invalid else paint("skip", TextStyle.FAINT)
    about = f"{result.title}: " if result.title else ""
    return f"{sanitize(str(result.location))}  {label}  {sanitize(about + result.reason)}"


def check_summary_line(summary: CheckSummary) -> str:
    """Return the totals in one sentence, and the exemptions in use in another."""
    counts = summary.counts
    totals = {
        "denied": counts[CheckVerdict.DENIED],
        "warned": counts[CheckVerdict.WARNED],
        "allowed": counts[CheckVerdict.ALLOWED],
        "without GPUs": counts[CheckVerdict.NO_GPU],
        "skipped": counts[CheckVerdict.SKIPPED] - summary.invalid,
        "invalid": summary.invalid,
    }
    parts = ", ".join(f"{number} {word}" for word, number in totals.items() if number)
    line = f"{pluralize(summary.objects, 'object')}{': ' if parts else ''}{parts}."
    return f"{line}{_gpu_change_text(summary)}{_exemptions_text(summary)}"


def audit_findings_line(summary: CheckSummary) -> str:
    """Return the number of notes, the findings in audit mode; "" if there are none."""
    if not summary.audit_findings:
        return ""
    return f"{pluralize(summary.audit_findings, 'note')}; -v shows {'it' if summary.audit_findings == 1 else 'them'}."


def unknown_outcomes_lines(results: Iterable[CheckResult]) -> Iterator[str]:
    """Yield how many objects could be right-sized if the nodes were known; nothing without such objects."""
    if unknown := sum(any(map(each.is_unknown, each.decisions)) for each in results):
        yield f"Right-sizing of {pluralize(unknown, 'object')}: {UNKNOWN_OUTCOME}. {ADD_CLUSTER}."


class PoliciesUsed(NamedTuple):
    """The names of the policies that objects were evaluated against, and where these come from."""

    names: Sequence[str]
    source: str


def policies_used_line(used: PoliciesUsed) -> str:
    """Return which policies were used."""
    return sanitize(f"Policies: {', '.join(used.names) or 'none'} ({used.source}).")


def _gpu_change_text(summary: CheckSummary) -> str:
    before, after = summary.gpu_milli_before, summary.gpu_milli_after
    if before == after:
        return ""
    return f" GPUs requested {format_gpus(before)}, after {format_gpus(after)}, saved {format_gpus(before - after)}."


def _exemptions_text(summary: CheckSummary) -> str:
    if not summary.exemptions:
        return ""
    each = ", ".join(f"{used.exemption}, ends {used.expires[:10]}" for used in summary.exemptions)
    return f" {pluralize(len(summary.exemptions), 'exemption')} in use ({sanitize(each)})."


def _gpu_column(key: str, value: Callable[[CheckResult], int], header: str) -> Column[CheckResult]:
    """Return a column of GPUs that is empty for a skipped document."""
    return Column(
        key, value, header, lambda result: "" if result.verdict is CheckVerdict.SKIPPED else format_gpus(value(result))
    )


OBJECTS = Table[CheckResult](
    (
        Column("file", lambda result: result.location.file),
        Column("line", lambda result: result.location.line),
        Column("apiVersion", lambda result: result.api_version),
        Column("verdict", lambda result: result.verdict.value, "Verdict"),
        Column("kind", lambda result: result.kind, "Kind"),
        Column("namespace", lambda result: result.namespace, "Namespace"),
        Column("name", lambda result: result.name, "Name"),
        _gpu_column("gpuMilliBefore", lambda result: result.decision.gpu_milli_before, "GPUs"),
        _gpu_column("gpuMilliAfter", lambda result: result.decision.gpu_milli_after, "After"),
        Column(
            "", lambda result: ",".join(dict.fromkeys(located.finding.code for located in result.findings)), "Codes"
        ),
        Column("", lambda result: result.location, "Location"),
        Column("keepReason", lambda result: result.decision.keep_reason),
        Column("message", lambda result: result_message(result), "Message", lambda result: _wide_message(result)),
        Column("replicas", lambda result: _replica_counts_document(result)),
        Column("findings", lambda result: [finding_document(located) for located in result.findings]),
        Column("patch", lambda result: list(result.decision.patch)),
    )
)
"""Objects as `-o wide` and JSON show them."""


def _replica_counts_document(result: CheckResult) -> Json | None:
    pods = result.decision.pods
    if pods is None or result.is_unknown(result.decision):
        return None
    return {"rightSized": pods.right_sized, "kept": pods.kept, "rejected": pods.rejected}


def check_document(results: Sequence[CheckResult], policies: Sequence[str] = ()) -> Json:
    """Return the results as plain data with an iterator of the objects: there may be a hundred thousand."""
    return {
        "objects": map(OBJECTS.to_document, results),
        "summary": _check_summary_document(summarize_results(results), results) | {"policies": policies},
    }


def finding_document(located: LocatedFinding) -> Json:
    """Return one finding as plain data."""
    return {
        "code": located.finding.code,
        "mode": str(located.finding.mode),
        "path": format_path(located.finding.path),
        "line": located.location.line,
        "column": located.location.column,
        "message": located.finding.message,
        "fix": located.finding.fix,
        "policy": located.finding.policy,
        "deniesPods": located.finding.denies_pods,
        "reason": located.finding.reason,
    }


def _check_summary_document(summary: CheckSummary, results: Sequence[CheckResult]) -> Json:
    counts = summary.counts
    modes = [located.finding.mode for result in results for located in result.findings]
    return {
        "objects": summary.objects,
        "denied": counts[CheckVerdict.DENIED],
        "warned": counts[CheckVerdict.WARNED],
        "allowed": counts[CheckVerdict.ALLOWED],
        "noGpu": counts[CheckVerdict.NO_GPU],
        "skipped": counts[CheckVerdict.SKIPPED],
        "invalid": summary.invalid,
        "findings": {str(mode): modes.count(mode) for mode in PolicyMode},
        "gpuMilliBefore": summary.gpu_milli_before,
        "gpuMilliAfter": summary.gpu_milli_after,
        "exemptions": [{"name": used.exemption, "expirationTime": used.expires} for used in summary.exemptions],
        "skips": [
            {"file": each.location.file, "line": each.location.line, "message": each.reason, "invalid": each.invalid}
            for each in results
            if each.verdict is CheckVerdict.SKIPPED
        ],
    }


def result_message(result: CheckResult) -> str:
    """Return what the GPUs became, or why the object is left as it is; "" for an object without GPUs."""
    if result.verdict is CheckVerdict.SKIPPED:
        return result.reason
    if not result.decision.templates:
        return _outcome_message(result, result.decision)
    messages = [(path, _outcome_message(result, decision)) for path, _, decision in result.decision.templates]
    if len({message for _, message in messages}) == 1:
        return messages[0][1]
    return "; ".join(f"{path}: {message}" for path, message in messages if message)


def _wide_message(result: CheckResult) -> str:
    """Return the first reason of a denial; else the same as `result_message`."""
    if result.verdict is not CheckVerdict.DENIED:
        return result_message(result)
    findings = (located.finding for located in result.findings)
    return next(each.message for each in findings if each.mode is PolicyMode.ENFORCE or each.denies_pods)


def _outcome_message(result: CheckResult, decision: Decision) -> str:
    if result.is_unknown(decision):
        return UNKNOWN_OUTCOME
    outcome = decision.outcome
    if isinstance(outcome, OfferChoice):
        verb = "right-sized to" if decision.applied else "would be right-sized to"
        return f"{verb} {offer_with_meaning(outcome)}"
    return str(outcome) if decision.involves_gpus else ""


def offer_with_meaning(choice: OfferChoice) -> str:
    """Return what a pod or claim gets: a resource with its meaning, or a device and its class."""
    offered = describe_offer(choice.offers[0])
    return offered if offered != choice.resource else resource_with_meaning(offered, resource_meaning(choice))


def resource_with_meaning(resource: str, meaning: str) -> str:
    """Return a resource name, with its meaning in brackets if there is one."""
    return f"{resource} ({meaning})" if meaning else resource


def resource_meaning(choice: OfferChoice) -> str:
    """Return what `nvidia.com/gpu` or the resource of a device class stands for; "" for names that contain it."""
    if choice.resource != WHOLE_GPU:
        return device_of_class(choice.offers[0])
    return abbreviate_names(tuple(dict.fromkeys(map(_offer_product, choice.offers))), MAX_PRODUCTS)


def _offer_product(offer: GpuOffer) -> str:
    """Return the product, with profile and share unless the product label ends in them.

    The label of an instance usually ends in its profile: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.
    """
    product = offer.product or "product not labeled"
    profile = f" {offer.profile}" if offer.profile and not offer.product.endswith(f"-{offer.profile}") else ""
    return f"{product}{profile}" + (f", 1 of {offer.replicas} shares" if offer.replicas > 1 else "")


def object_name(result: CheckResult) -> str:
    """Return kind and name of an evaluated object, the kind in lower case with the API group after a dot."""
    return kubectl_name(result.api_version, result.kind, result.name)


def kubectl_workload_name(workload: str) -> str:
    """Return a workload such as "Deployment/serve" as `kubectl get -o name` prints it: deployment.apps/serve."""
    kind, _, name = workload.partition("/")
    group = GROUPS_BY_KIND.get(kind, "")
    return kubectl_name(f"{group}/" if group else "", kind, name)


def kubectl_name(api_version: str, kind: str, name: str) -> str:
    """Return kind and name as `kubectl get -o name` prints them: deployment.apps/serve."""
    group, slash, _ = api_version.partition("/")
    qualified = f"{kind.lower()}.{group}" if slash else kind.lower()
    return sanitize(f"{qualified}/{name}")
