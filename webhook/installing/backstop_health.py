"""`doctor` on the backstop: does the API server itself refuse the worst, and is that what the mode asks for?"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.installing.chosen import chosen
from webhook.installing.facts import Facts, putting_right
from webhook.installing.lines import Line, State, unread

DENIES = {"audit": False, "enforce": True}


def backstop(facts: Facts) -> Iterator[Line]:
    """Does the backstop deny, and does that agree with the mode?"""
    if facts.backstop is None:
        yield unread(facts, "backstop", "no binding of the backstop", putting_right(facts))
        return
    denies = "Deny" in facts.backstop["spec"]["validationActions"]
    what = "the backstop denies" if denies else "the backstop denies nothing"
    mode = chosen(facts.deployment).mode if facts.deployment else ""
    if mode not in DENIES:
        yield Line(State.OK, what, "the mode of a server outside the cluster cannot be seen")
    elif denies == DENIES[mode]:
        yield Line(State.OK, f"{what}, as mode {mode} has it")
    else:
        yield Line(State.FAIL, f"{what}, but the mode is {mode}", f"rightslice install --mode {mode}")
