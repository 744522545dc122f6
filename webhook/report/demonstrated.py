"""What `demo` shows of one object: what was asked, what became of it, what was said, and how long it took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

import msgspec

from webhook.report.diff import diff, without_records
from webhook.report.explained import asked
from webhook.report.results import Checked, Located
from webhook.report.words import Paint, Style, count, gpus, in_gpus, plain, shown

WIDTH = 80
"""Columns of a plain terminal."""

REFUSED = "its pods will be refused"
"""What a warning says of a workload whose pods no policy will let in."""

_CODED = re.compile(r"\[(GPU-[A-Z]\d+)\] (.*)", re.DOTALL)


class Shown(msgspec.Struct, frozen=True):
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

    checked: Checked
    shaped: Mapping[str, Any]
    denied: str
    warnings: tuple[str, ...]
    gpu_milli_before: int
    gpu_milli_after: int
    milliseconds: tuple[float, float]
    story: str = ""

    @property
    def is_pod(self) -> bool:
        """False for a workload, which is only told what will happen to its pods."""
        return self.checked.kind == "Pod"

    @property
    def changed(self) -> bool:
        """Did the server change it?"""
        return self.shaped != self.checked.stored


def demonstrated(one: Shown, paint: Paint = plain) -> Iterator[str]:
    """Write one object's way through the server."""
    result = one.checked
    word, style = _verdict(one)
    yield f"{paint(shown(result.title), Style.STRONG)}  {paint(word, style)}  {shown(str(result.place))}"
    yield from (paint(f"  # {line}", Style.FAINT) for line in _wrapped(one.story))
    yield from (f"  {line}" for line in _amounts(one))
    if not one.denied:
        changed = diff(result.stored, without_records(one.shaped, result.stored), paint, width=WIDTH - 2)
        yield from (f"  {line}" for line in changed)
    for text in once(one.warnings):
        yield from _said("warn", Style.WARNING, text, result, paint)
    for text in reasons(one.denied):
        yield from _said("deny", Style.BAD, text, result, paint)
    mutate, validate = one.milliseconds
    yield paint(f"  /mutate {mutate:.1f} ms, /validate {validate:.1f} ms", Style.FAINT)


def _amounts(one: Shown) -> list[str]:
    """What was asked for and what is given, as the totals count it; then by container."""
    before, after = one.gpu_milli_before, one.gpu_milli_after
    if not before:
        return ["asks for no GPU"]
    if not one.is_pod:
        refused = any(REFUSED in text for text in one.warnings)
        return [f"its pods will ask for {in_gpus(before)} and {'be refused' if refused else f'get {gpus(after)}'}"]
    line = f"asked {in_gpus(before)}, {'denied' if one.denied else f'gets {gpus(after)}'}"
    containers = asked(one.checked.stored)
    fits = len(line + containers) <= WIDTH - 2
    return [line + containers] if fits else [line, *_wrapped(containers)]


def _verdict(one: Shown) -> tuple[str, Style]:
    if one.denied:
        return "denied", Style.BAD
    if one.changed:
        return "changed", Style.GOOD
    return ("warned", Style.WARNING) if one.warnings else ("unchanged", Style.FAINT)


def reasons(message: str) -> list[str]:
    """The findings in a denial's message, one each; the whole message where it names none."""
    lines = [line for line in message.splitlines() if _CODED.match(line)]
    return lines or ([message] if message else [])


def once(texts: Iterable[str]) -> list[str]:
    """The texts without repetitions, in their order."""
    return list(dict.fromkeys(texts))


def _said(label: str, style: Style, text: str, result: Checked, paint: Paint) -> Iterator[str]:
    match = _CODED.match(text)
    if match is None:
        yield from (f"  {line}" for line in _wrapped(f"{label}  {text}"))
        return
    code, words = match.groups()
    found = finding_of(code, words, result)
    yield f"  {paint(label, style)}  {code}  {shown(str(found.place if found else result.place))}"
    yield from (f"    {line}" for line in _wrapped(_with_fix(words, found)))


def _with_fix(words: str, found: Located | None) -> str:
    """The message with its fix, which a server leaves out where a warning would be longer than kubectl shows."""
    fix = found.finding.fix if found else ""
    return words if not fix or fix in words else f"{words} {fix}"


def _wrapped(text: str) -> Sequence[str]:
    return wrap(shown(text), WIDTH - 4, break_long_words=False, break_on_hyphens=False)


def finding_of(code: str, words: str, result: Checked) -> Located | None:
    """The finding that a message is about: the one that says the same, else the first of that code."""
    same = [found for found in result.findings if found.finding.code == code]
    return next((found for found in same if found.finding.message in words), same[0] if same else None)


def totals(every: Sequence[Shown]) -> list[str]:
    """The summary. What is denied or is no pod is told apart, so that the figures are sums of the lines above."""
    pods, others = [one for one in every if one.is_pod], [one for one in every if not one.is_pod]
    let_in, denied = [one for one in pods if not one.denied], [one for one in pods if one.denied]
    before, after = sum(one.gpu_milli_before for one in let_in), sum(one.gpu_milli_after for one in let_in)
    changed = sum(one.changed for one in let_in)
    lines = [
        f"{count(len(pods), 'pod')}: {len(let_in)} let in ({changed} changed, {len(let_in) - changed} as they were), "
        f"{len(denied)} denied.",
        f"GPUs asked {gpus(before)}, after {gpus(after)}, saved {gpus(before - after)}, of the pods let in; "
        f"{gpus(sum(one.gpu_milli_before for one in denied))} denied.",
    ]
    if others:
        lines.append(f"{count(len(others), 'workload')} told what will become of its pods; not counted above.")
    times = sorted(ms for one in every for ms in one.milliseconds)
    return [*lines, f"Median answer {times[len(times) // 2]:.1f} ms."] if times else lines
