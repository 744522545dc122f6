"""Compare an amount with rules of `spec.limits`: the bound that it violates, and the nearest allowed amounts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from webhook.model.quantity import NANO, format_nano
from webhook.policy.policy_set import AmountRule

AmountBound = tuple[AmountRule, int]
"""A rule, and the factor of its amounts."""

NO_AMOUNT = "No amount satisfies every policy: ask the admin."


def violated_code(rule: AmountRule, amount: int, times: int) -> str | None:
    """Return the code of the first violation; zero violates no rule."""
    if not amount:
        return None
    if rule.max is not None and amount > rule.max * times:
        return "GPU-L103"
    if rule.min is not None and amount < rule.min * times:
        return "GPU-L101"
    if rule.allowed and amount not in [choice * times for choice in rule.allowed]:
        return "GPU-L102"
    return None


def describe_bound(code: str, rule: AmountRule, times: int) -> str:
    """Return the bound of a rule that a violation is about, as "at most 4"."""
    if code == "GPU-L103":
        return f"at most {format_nano((rule.max or 0) * times)}"
    if code == "GPU-L101":
        return f"at least {format_nano((rule.min or 0) * times)}"
    return f"one of {', '.join(format_nano(choice * times) for choice in rule.allowed)}"


def most_units(rules: Iterable[AmountRule]) -> int | None:
    """Return the most units of GPUs that every rule allows; None if they set no bound."""
    bounds = [max(rule.allowed) if rule.allowed else rule.max for rule in rules]
    return min((bound // NANO for bound in bounds if bound is not None), default=None)


def bounds_of_gpus(rules: Iterable[AmountRule], name: str, counted: Iterable[str]) -> list[AmountBound]:
    """Return the bounds of GPUs of one name.

    A rule for a sum with others bounds one name by its maximum only: the others may add what it misses.

    Args:
        counted: All names under which GPUs count.
    """
    others = [one for one in counted if one != name]
    matching = [rule for rule in rules if rule.matches(name)]
    return [(_as_maximum(rule) if any(map(rule.matches, others)) else rule, 1) for rule in matching]


def _as_maximum(rule: AmountRule) -> AmountRule:
    return replace(rule, allowed=(), min=None, max=max(rule.allowed) if rule.allowed else rule.max)


def nearest_allowed_amounts(bounds: Sequence[AmountBound], amount: int) -> str:
    """Return a sentence with the nearest amounts above and below that every bound allows."""
    nearest = list(map(format_nano, nearest_amounts(bounds, amount)))
    return f"Write {', or '.join(nearest)}." if nearest else NO_AMOUNT


def nearest_amounts(bounds: Sequence[AmountBound], amount: int) -> list[int]:
    """Return the nearest amounts above and below that every bound allows."""
    least = max((rule.min * times for rule, times in bounds if rule.min is not None), default=0)
    most = min((rule.max * times for rule, times in bounds if rule.max is not None), default=None)
    listed = [{choice * times for choice in rule.allowed} for rule, times in bounds if rule.allowed]
    choices = set.intersection(*listed) if listed else {least if most is None or amount < least else most}
    fitting = [choice for choice in choices if choice >= least and (most is None or choice <= most)]
    above = min((choice for choice in fitting if choice > amount), default=None)
    below = max((choice for choice in fitting if choice < amount), default=None)
    return [choice for choice in (above, below) if choice is not None]
