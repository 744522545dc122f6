"""Sums of GPUs, which a rule with a glob bounds: each GPU or slice under a name that the glob matches counts one.

A request that may get devices of several kinds counts once, by the kind of which it may get the most. A resource that a
device class serves counts as its devices alone, not also by its own name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.amount_bounds import NO_AMOUNT, AmountBound, describe_bound, nearest_amounts, violated_code
from webhook.engine.claimed_gpus import DeviceAlternatives
from webhook.engine.policy_findings import PolicyFinding
from webhook.model.field_paths import FieldPath
from webhook.model.quantity import NANO, format_nano
from webhook.policy.policy_set import AmountRule, AmountRuleSet

NO_RULES: tuple[AmountRule, ...] = ()


class GpuCounts(NamedTuple):
    """The GPUs of a pod, or of a container.

    Attributes:
        named: Units that are requested by name.
        requests: Requests for devices by claims and device classes.
    """

    named: Mapping[str, int]
    requests: Sequence[DeviceAlternatives] = ()

    def names(self) -> dict[str, None]:
        """Return the names under which any GPU counts, in order."""
        names = dict.fromkeys(name for name, count in self.named.items() if count)
        return names | dict.fromkeys(name for one in self.requests for name in one.units)

    def sum_of(self, rule: AmountRule) -> int:
        """Return the units under the names that a rule matches."""
        return self.parts_of_sum(rule).total()

    def parts_of_sum(self, rule: AmountRule) -> Counter[str]:
        """Return the units that add up to the sum that a rule bounds, by what they are."""
        parts = Counter({name: count for name, count in self.named.items() if count and rule.matches(name)})
        for units, times in self.requests:
            if found := {name: count for name, count in units.items() if rule.matches(name)}:
                parts[_describe_alternatives(found)] += times * max(found.values())
        return parts


def summing_rules(rules: AmountRuleSet, counts: GpuCounts) -> tuple[AmountRule, ...]:
    """Return the rules that bound a sum of GPUs: their glob matches several names that count."""
    names = counts.names()
    return tuple(rule for rule in rules.globs if sum(map(rule.matches, names)) > 1) if len(names) > 1 else NO_RULES


def sum_violations(
    summed: Sequence[AmountRule],
    counts: GpuCounts,
    subject: str,
    field_of: Callable[[str], FieldPath],
    globs: Sequence[AmountRule],
) -> Iterator[PolicyFinding]:
    """Yield the sums that rules do not allow.

    Args:
        subject: What requests the GPUs, with "{}" for the glob.
        field_of: Returns a field that requests GPUs of a name.
        globs: The rules with globs that a fix has to satisfy.
    """
    for rule in summed:
        parts = counts.parts_of_sum(rule)
        amount = parts.total() * NANO
        if (code := violated_code(rule, amount, 1)) is not None:
            listed = ", ".join(f"{count} {name}" for name, count in parts.items())
            must = f"must be {describe_bound(code, rule, 1)} in sum (found {format_nano(amount)}: {listed})"
            bounds = [(one, 1) for one in globs if one.resource == rule.resource]
            message = f"{subject.format(rule.resource)} {must}"
            field = field_of(next(filter(rule.matches, counts.names())))
            yield PolicyFinding(code, field, message, _nearest_sums(bounds, amount))


def _describe_alternatives(units: Mapping[str, int]) -> str:
    first, *others = sorted(units)
    return " or ".join([first, *others]) if len(others) < 3 else f"{first} or {len(others)} other names"


def _nearest_sums(bounds: Sequence[AmountBound], amount: int) -> str:
    nearest = nearest_amounts(bounds, amount)
    if not nearest:
        return NO_AMOUNT
    return f"Request {', or '.join(map(format_nano, nearest))} in sum." if any(nearest) else "Request none of them."
