"""Sums of GPUs, which a rule with a glob bounds: each GPU or slice under a name that the glob matches counts one.

A request that may get devices of several kinds counts once, by the kind of which it may get the most. A resource that a
device class serves counts as its devices alone, not also by its own name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.amount_bounds import NO_AMOUNT, describe_bound, nearest_amounts, violated_code
from webhook.engine.claimed_gpus import RequestAlternatives
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
    requests: Sequence[RequestAlternatives] = ()

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
        for units, uses in self.requests:
            if found := {name: count for name, count in units.items() if rule.matches(name)}:
                parts[_describe_alternatives(found)] += uses * max(found.values())
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
    rules: Sequence[AmountRule],
) -> Iterator[PolicyFinding]:
    """Yield the sums that rules do not allow.

    Args:
        subject: What requests the GPUs, with "{}" for the glob.
        field_of: Returns a field that requests GPUs of a name.
        rules: The rules that a fix has to satisfy.
    """
    for rule in summed:
        parts = counts.parts_of_sum(rule)
        amount = parts.total() * NANO
        if (code := violated_code(rule, amount, 1)) is not None:
            listed = ", ".join(f"{count} {name}" for name, count in parts.items())
            must = f"must be {describe_bound(code, rule, 1)} in sum (found {format_nano(amount)}: {listed})"
            message, names = f"{subject.format(rule.resource)} {must}", list(filter(rule.matches, counts.names()))
            binding = [one for one in rules if any(map(one.matches, names))]
            yield PolicyFinding(code, field_of(names[0]), message, _nearest_sums(rule.resource, binding, amount))


def _describe_alternatives(units: Mapping[str, int]) -> str:
    first, *others = sorted(units)
    return " or ".join([first, *others]) if len(others) < 3 else f"{first} or {len(others)} other names"


def _nearest_sums(glob: str, rules: Sequence[AmountRule], amount: int) -> str:
    """Return a fix with the nearest sums, unless other rules for parts of the sum, or a wider one, may exclude them."""
    nearest = nearest_amounts([(one, 1) for one in rules if one.resource == glob], amount)
    if not nearest:
        return NO_AMOUNT
    if not any(nearest):
        return "Request none of them."
    if any(one.resource != glob for one in rules):
        return "Request a sum that the limits of all its parts allow."
    return f"Request {', or '.join(map(format_nano, nearest))} in sum."
