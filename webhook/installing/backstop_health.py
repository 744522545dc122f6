"""`doctor` on the backstop: does the API server itself refuse the worst, and is that what the mode asks for?"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.installing.chosen import parse_deployment
from webhook.installing.facts import ClusterFacts, repair_command
from webhook.installing.lines import DiagnosticResult, CheckState, unread_part_result

DENY_BY_MODE = {"audit": False, "enforce": True}


def check_backstop(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Does the backstop deny, and does that agree with the mode?"""
    if facts.backstop is None:
        yield unread_part_result(facts, "backstop", "no binding of the backstop", repair_command(facts))
        return
    denies = "Deny" in facts.backstop["spec"]["validationActions"]
    what = "the backstop denies" if denies else "the backstop denies nothing"
    mode = parse_deployment(facts.deployment).mode if facts.deployment else ""
    if mode not in DENY_BY_MODE:
        yield DiagnosticResult(CheckState.OK, what, "the mode of a server outside the cluster cannot be seen")
    elif denies == DENY_BY_MODE[mode]:
        yield DiagnosticResult(CheckState.OK, f"{what}, as mode {mode} has it")
    else:
        yield DiagnosticResult(CheckState.FAIL, f"{what}, but the mode is {mode}", f"rightslice install --mode {mode}")
