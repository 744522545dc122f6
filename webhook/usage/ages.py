"""How old recorded use may be: what a month has passed since says nothing about what a pod needs now."""

from __future__ import annotations

from webhook.report.words import count

DAY = 86_400

TOLD_SECONDS = DAY
"""A person is told of what is older."""

USED_SECONDS = 30 * DAY
"""What is older is not used: without evidence nothing is shrunk."""

AHEAD_SECONDS = 300
"""What clocks may differ by. What is further ahead was not recorded when it says."""

AGAIN = "Write a new one: rightslice usage record --prometheus URL --file FILE"


def too_new(recorded: float, now: float) -> str:
    """Why recorded use cannot be of the moment that it says, both in Unix seconds; "" if it can."""
    if recorded - now <= AHEAD_SECONDS:
        return ""
    return f"must be recorded before now, found {_time(recorded - now)} from now: one of the clocks is wrong. {AGAIN}"


def too_old(recorded: float, now: float) -> str:
    """Why recorded use is not used, both in Unix seconds; "" if it is."""
    if now - recorded <= USED_SECONDS:
        return ""
    return f"recorded {_time(now - recorded)} ago: after {_time(USED_SECONDS)} it is not used. {AGAIN}"


def worth_telling(recorded: float, now: float) -> str:
    """How old recorded use is, where that is worth a word; else ""."""
    return f"recorded {_time(now - recorded)} ago" if now - recorded > TOLD_SECONDS else ""


def _time(seconds: float) -> str:
    days = round(seconds / DAY)
    return count(days, "day") if days else count(round(seconds / 60), "minute")
