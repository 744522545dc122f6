"""What `demo` shows of one object: what was asked, what became of it, what was said, and how long it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from webhook.report.explain import gpu_requests_text
from webhook.report.object_diff import diff_lines, object_without_records
from webhook.report.results import CheckResult, LocatedFinding
from webhook.report.text import Paint, TextStyle, format_gpus, format_gpus_with_unit, pluralize, sanitize, without_style

WIDTH = 80
"""Columns of a plain terminal."""

PODS_REJECTED = "its pods will be refused"
"""What a warning says of a workload whose pods no policy will let in."""

_CODED = re.compile(r"\[(GPU-[A-Z]\d+)\] (.*)", re.DOTALL)


class DemoResult(msgspec.Struct, frozen=True):
    """One object that went through the server.

    Attributes:
        checked: The same object judged here, for places and figures.
        shaped: The object after the server's patch.
        denied: The reasons of /validate, one a line; "" where it let the object in.
        warnings: What both routes warned of.
        gpu_milli_before: Thousandths of a GPU asked for.
        gpu_milli_after: The same for what the server made of it.
        milliseconds: Of /mutate and of /validate.
        story: What its file says it is an example of; "" for nothing.
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
        """False for a workload, which is only told what will happen to its pods."""
        return self.result.kind == "Pod"

    @property
    def is_changed(self) -> bool:
        """Did the server change it?"""
        return self.patched != self.result.stored


def demo_lines(one: DemoResult, paint: Paint = without_style) -> Iterator[str]:
    """Write one object's way through the server."""
    result = one.result
    word, style = _demo_verdict(one)
    yield f"{paint(sanitize(result.title), TextStyle.STRONG)}  {paint(word, style)}  {sanitize(str(result.place))}"
    yield from (paint(f"  # {line}", TextStyle.FAINT) for line in _wrap_text(one.description))
    yield from (f"  {line}" for line in _demo_amounts(one))
    if not one.denied:
        changed = diff_lines(result.stored, object_without_records(one.patched, result.stored), paint, width=WIDTH - 2)
        yield from (f"  {line}" for line in changed)
    for text in unique_texts(one.warnings):
        yield from _demo_message_lines("warn", TextStyle.WARNING, text, result, paint)
    for text in denial_reasons(one.denied):
        yield from _demo_message_lines("deny", TextStyle.BAD, text, result, paint)
    mutate, validate = one.milliseconds
    yield paint(f"  /mutate {mutate:.1f} ms, /validate {validate:.1f} ms", TextStyle.FAINT)


def _demo_amounts(one: DemoResult) -> list[str]:
    """What was asked for and what is given, as the totals count it; then by container."""
    before, after = one.gpu_milli_before, one.gpu_milli_after
    if not before:
        return ["asks for no GPU"]
    if not one.is_pod:
        refused = any(PODS_REJECTED in text for text in one.warnings)
        return [
            (
                f"its pods will ask for {format_gpus_with_unit(before)} and "
                f"{'be refused' if refused else f'get {format_gpus(after)}'}"
            )
        ]
    line = f"asked {format_gpus_with_unit(before)}, {'denied' if one.denied else f'gets {format_gpus(after)}'}"
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
    """The findings in a denial's message, one each; the whole message where it names none."""
    lines = [line for line in message.splitlines() if _CODED.match(line)]
    return lines or ([message] if message else [])


def unique_texts(texts: Iterable[str]) -> list[str]:
    """The texts without repetitions, in their order."""
    return list(dict.fromkeys(texts))


def _demo_message_lines(label: str, style: TextStyle, text: str, result: CheckResult, paint: Paint) -> Iterator[str]:
    match = _CODED.match(text)
    if match is None:
        yield from (f"  {line}" for line in _wrap_text(f"{label}  {text}"))
        return
    code, words = match.groups()
    found = finding_for_message(code, words, result)
    yield f"  {paint(label, style)}  {code}  {sanitize(str(found.place if found else result.place))}"
    yield from (f"    {line}" for line in _wrap_text(_message_with_fix(words, found)))


def _message_with_fix(words: str, found: LocatedFinding | None) -> str:
    """The message with its fix, which a server leaves out where a warning would be longer than kubectl shows."""
    fix = found.finding.fix if found else ""
    return words if not fix or fix in words else f"{words} {fix}"


def _wrap_text(text: str) -> Sequence[str]:
    return wrap(sanitize(text), WIDTH - 4, break_long_words=False, break_on_hyphens=False)


def finding_for_message(code: str, words: str, result: CheckResult) -> LocatedFinding | None:
    """The finding that a message is about: the one that says the same, else the first of that code."""
    same = [found for found in result.findings if found.finding.code == code]
    return next((found for found in same if found.finding.message in words), same[0] if same else None)


def demo_summary(every: Sequence[DemoResult]) -> list[str]:
    """The summary. What is denied or is no pod is told apart, so that the figures are sums of the lines above."""
    pods, others = [one for one in every if one.is_pod], [one for one in every if not one.is_pod]
    let_in, denied = [one for one in pods if not one.denied], [one for one in pods if one.denied]
    before, after = sum(one.gpu_milli_before for one in let_in), sum(one.gpu_milli_after for one in let_in)
    changed = sum(one.is_changed for one in let_in)
    lines = [
        f"{pluralize(len(pods), 'pod')}: {len(let_in)} let in ({changed} changed, "
        f"{len(let_in) - changed} as they were), "
        f"{len(denied)} denied.",
        f"GPUs asked {format_gpus(before)}, after {format_gpus(after)}, saved {format_gpus(before - after)}, "
        f"of the pods let in; "
        f"{format_gpus(sum(one.gpu_milli_before for one in denied))} denied.",
    ]
    if others:
        lines.append(f"{pluralize(len(others), 'workload')} told what will become of its pods; not counted above.")
    times = sorted(ms for one in every for ms in one.milliseconds)
    return [*lines, f"Median answer {times[len(times) // 2]:.1f} ms."] if times else lines
