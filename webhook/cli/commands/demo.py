"""`demo`: send the example pods to a real webhook server over HTTPS, with the shipped policies and example cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from textwrap import wrap
from typing import Any

import msgspec

from webhook.audit.evaluate import EvaluationContext, evaluate_object, with_admission_defaults
from webhook.audit.object_files import SourceObject, read_objects
from webhook.cache.bundled_files import bundled_folder, shown_name
from webhook.cli import flags
from webhook.cli.inputs import load_policy_set, parse_now, read_cluster_view, shipped_path
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, paint_for, print_note, print_result
from webhook.cli.webhook_client import WebhookClient, WebhookProcessError, run_webhook_process
from webhook.model.claims import CLAIM_KINDS
from webhook.model.findings import Finding
from webhook.report.check import finding_sentence
from webhook.report.explain import gpu_requests_text
from webhook.report.object_diff import apply_json_patch, diff_lines, object_without_records
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding
from webhook.report.text import Paint, TextStyle, format_gpus, format_gpus_with_unit, pluralize, sanitize, without_style

WIDTH = 80
"""Columns of a plain terminal."""

CUT = "..."
"""The end of a warning that the server shortened to what kubectl shows."""

UID = "00000000-0000-4000-8000-000000000000"
"""What the API server adds between the calls of /mutate and /validate."""

_CODED = re.compile(r"\[(GPU-[A-Z]\d+)\] (.*)", re.DOTALL)


class DemoResult(msgspec.Struct, frozen=True):
    """One object that was sent to the server.

    Attributes:
        result: The same object evaluated in this process, for locations and GPUs.
        patched: The object after the server's patch.
        denied: The reasons of /validate, one per line; "" if the object was allowed.
        milliseconds: Response times of /mutate and /validate.
        description: From the comment of its file.
    """

    result: CheckResult
    patched: Mapping[str, Any]
    denied: str
    warnings: tuple[str, ...]
    gpu_milli_before: int
    gpu_milli_after: int
    milliseconds: tuple[float, float]
    description: str = ""

    @property
    def is_pod(self) -> bool:
        """True for a pod; for a workload there are only warnings about its pods, for a claim about its devices."""
        return self.result.kind == "Pod"

    @property
    def is_claim(self) -> bool:
        """True for a resource claim or a template of claims."""
        return self.result.kind in CLAIM_KINDS

    @property
    def is_changed(self) -> bool:
        """True if the server changed it."""
        return self.patched != self.result.stored


def demo_command(no_color: flags.NoColor = False) -> None:
    """Start a webhook server and send it example pods.

    A real HTTPS server evaluates and patches the example pods with the shipped policies. Needs no cluster.

    Exit code: 0, 3 the server did not start.
    """
    policies = shipped_path("policies")
    pods = shipped_path("examples", "pods")
    context = EvaluationContext(load_policy_set([policies]), read_cluster_view("demo", {}), parse_now(""))
    paint = paint_for(no_color=no_color)
    results: list[DemoResult] = []
    print_note("starting the server …")
    try:
        with run_webhook_process(["--policies", policies, "--cluster", "demo"]) as (client, port):
            inputs = f"{shown_name(policies)}/, example cluster of {len(context.view.fleet.nodes)} nodes"
            print_result([f"Server at https://127.0.0.1:{port}, {inputs}"])
            for result in review_objects(client, [pods], context):
                results.append(result)
                print_result(["", *demo_lines(result, paint)])
    except (WebhookProcessError, OSError, ValueError) as error:
        exit_with_error(str(error), EXIT_NO_ANSWER)
    print_result(["", *demo_summary(results), "To keep a server running: make serve"])


def review_objects(client: WebhookClient, paths: list[str], context: EvaluationContext) -> Iterator[DemoResult]:
    """Send each object of the files to /mutate, and the patched object to /validate."""
    for source in read_objects(paths):
        if not isinstance(source, SourceObject):
            continue
        result = evaluate_object(with_admission_defaults(source, context), context)
        if result.verdict is not CheckVerdict.SKIPPED:
            yield _review_object(client, source, result, context)


def _review_object(
    client: WebhookClient, source: SourceObject, result: CheckResult, context: EvaluationContext
) -> DemoResult:
    mutated = client.review("/mutate", result.stored, f"mutate-{result.name}")
    patched = apply_json_patch(result.stored, mutated.patch)
    stored = {**patched, "metadata": {**patched["metadata"], "uid": UID}}
    validated = client.review("/validate", stored, f"validate-{result.name}")
    milli_after = result.decision.gpu_milli_after
    if result.kind == "Pod":
        reviewed = evaluate_object(SourceObject(patched, source.document, source.prefix), context)
        milli_after = reviewed.decision.gpu_milli_before
    file = bundled_folder("examples") / "pods" / Path(source.document.file).name
    lines = file.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return DemoResult(
        result=result,
        patched=patched,
        denied="" if validated.allowed else validated.message,
        warnings=(*mutated.warnings, *validated.warnings),
        gpu_milli_before=result.decision.gpu_milli_before,
        gpu_milli_after=milli_after,
        milliseconds=(mutated.milliseconds, validated.milliseconds),
        description=" ".join(line.lstrip("#").strip() for line in comment),
    )


def demo_lines(one: DemoResult, paint: Paint = without_style) -> Iterator[str]:
    """Yield the lines about one object."""
    result = one.result
    word, style = _demo_verdict(one)
    yield f"{paint(sanitize(result.title), TextStyle.STRONG)}  {paint(word, style)}  {sanitize(str(result.location))}"
    yield from (paint(f"  # {line}", TextStyle.FAINT) for line in _wrap_text(one.description))
    yield from (f"  {line}" for line in _demo_amounts(one))
    if not one.denied:
        changed = diff_lines(result.stored, object_without_records(one.patched, result.stored), paint, width=WIDTH - 2)
        yield from (f"  {line}" for line in changed)
    fixes = {f"[{found.finding.code}] {found.finding.fix}" for found in result.findings}  # shown with their findings
    for text in (each for each in dict.fromkeys(one.warnings) if each not in fixes):
        yield from _demo_message_lines("warn", TextStyle.WARNING, text, result, paint)
    for text in denial_reasons(one.denied):
        yield from _demo_message_lines("deny", TextStyle.BAD, text, result, paint)
    mutate, validate = one.milliseconds
    yield paint(f"  /mutate {mutate:.1f} ms, /validate {validate:.1f} ms", TextStyle.FAINT)


def _demo_amounts(one: DemoResult) -> list[str]:
    """Return the GPUs before and after, as the totals count them, then by container."""
    before, after = one.gpu_milli_before, one.gpu_milli_after
    if one.is_claim:
        return []
    if not before:
        return ["requests no GPU"]
    if not one.is_pod:
        denied = any(found.finding.denies_pods for found in one.result.findings)
        outcome = "will be denied" if denied else f"will get {format_gpus(after)}"
        return [f"its pods request {format_gpus_with_unit(before)} and {outcome}"]
    line = f"requests {format_gpus_with_unit(before)}, {'denied' if one.denied else f'gets {format_gpus(after)}'}"
    containers = gpu_requests_text(one.result.stored)
    fits = len(line + containers) <= WIDTH - 2
    return [line + containers] if fits else [line, *_wrap_text(containers)]


def _demo_verdict(one: DemoResult) -> tuple[str, TextStyle]:
    if one.denied:
        return "denied", TextStyle.BAD
    if one.is_changed:
        return "changed", TextStyle.GOOD
    return ("warned", TextStyle.WARNING) if one.warnings else ("unchanged", TextStyle.FAINT)


def denial_reasons(message: str) -> list[str]:
    """Return the findings in a denial's message; the whole message if it has none."""
    lines = [line for line in message.splitlines() if _CODED.match(line)]
    return lines or ([message] if message else [])


def _demo_message_lines(label: str, style: TextStyle, text: str, result: CheckResult, paint: Paint) -> Iterator[str]:
    match = _CODED.match(text)
    if match is None:
        yield from (f"  {line}" for line in _wrap_text(f"{label}  {text}"))
        return
    code, words = match.groups()
    found = finding_for_message(code, words, result)
    yield f"  {paint(label, style)}  {code}  {sanitize(str(found.location if found else result.location))}"
    if found and words.endswith(CUT):
        words = f"{finding_sentence(found.finding)}."
    fix = found.finding.fix if found else ""
    if fix not in words:  # it is the next warning if this one would be longer than kubectl shows
        words = f"{words} {fix}"
    yield from (f"    {line}" for line in _wrap_text(words))


def _wrap_text(text: str) -> Sequence[str]:
    return wrap(sanitize(text), WIDTH - 4, break_long_words=False, break_on_hyphens=False)


def finding_for_message(code: str, words: str, result: CheckResult) -> LocatedFinding | None:
    """Return the finding with this message, or else the first of this code."""
    candidates = [found for found in result.findings if found.finding.code == code]
    shown = (each for each in candidates if each.finding.message in words or _is_cut_from(words, each.finding))
    return next(shown, next(iter(candidates), None))


def _is_cut_from(words: str, finding: Finding) -> bool:
    return words.endswith(CUT) and finding_sentence(finding).startswith(words.removesuffix(CUT))


def demo_summary(every: Sequence[DemoResult]) -> list[str]:
    """Return the summary; denied pods, workloads and claims are counted apart, so that the lines above add up to it."""
    pods, others = [one for one in every if one.is_pod], [one for one in every if not one.is_pod]
    allowed, denied = [one for one in pods if not one.denied], [one for one in pods if one.denied]
    before, after = sum(one.gpu_milli_before for one in allowed), sum(one.gpu_milli_after for one in allowed)
    rejected = sum(one.gpu_milli_before for one in denied)
    changed = sum(one.is_changed for one in allowed)
    lines = [
        f"{pluralize(len(pods), 'pod')}: {len(allowed)} allowed ({changed} changed, {len(allowed) - changed} "
        f"unchanged), {len(denied)} denied.",
        f"The allowed pods requested {format_gpus(before)} GPUs and now get {format_gpus(after)}: "
        f"{format_gpus(before - after)} saved.",
        f"The denied pods requested {format_gpus_with_unit(rejected)}.",
    ]
    lines += [
        f"{pluralize(len(some), noun)} with warnings, not counted above."
        for noun, some in (
            ("workload", [one for one in others if not one.is_claim]),
            ("resource claim", [one for one in others if one.is_claim]),
        )
        if some
    ]
    times = sorted(ms for one in every for ms in one.milliseconds)
    return [*lines, f"Median response time {times[len(times) // 2]:.1f} ms."] if times else lines
