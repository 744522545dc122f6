"""How old recorded use may be: what a month has passed since says nothing about what a pod needs now."""

from __future__ import annotations

from webhook.report.words import pluralize

DAY_SECONDS = 86_400

NOTE_AGE_SECONDS = DAY_SECONDS
"""A person is told of what is older."""

MAX_AGE_SECONDS = 30 * DAY_SECONDS
"""What is older is not used: without evidence nothing is shrunk."""

MAX_CLOCK_SKEW_SECONDS = 300
"""What clocks may differ by. What is further ahead was not recorded when it says."""

RECORD_AGAIN = "Write a new one: rightslice usage record --prometheus URL --file FILE"


def future_record_error(recorded: float, now: float) -> str:
    """Why recorded use cannot be of the moment that it says, both in Unix seconds; "" if it can."""
    if recorded - now <= MAX_CLOCK_SKEW_SECONDS:
        return ""
    return f"must be recorded before now, found {_duration_text(recorded - now)} from now: one of the clocks is wrong. {RECORD_AGAIN}"


def old_record_error(recorded: float, now: float) -> str:
    """Why recorded use is not used, both in Unix seconds; "" if it is."""
    if now - recorded <= MAX_AGE_SECONDS:
        return ""
    return f"recorded {_duration_text(now - recorded)} ago: after {_duration_text(MAX_AGE_SECONDS)} it is not used. {RECORD_AGAIN}"


def record_age_note(recorded: float, now: float) -> str:
    """How old recorded use is, where that is worth a word; else ""."""
    return f"recorded {_duration_text(now - recorded)} ago" if now - recorded > NOTE_AGE_SECONDS else ""


def _duration_text(seconds: float) -> str:
    days = round(seconds / DAY_SECONDS)
    return pluralize(days, "day") if days else pluralize(round(seconds / 60), "minute")
