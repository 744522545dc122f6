"""Which amounts would satisfy every limit that speaks about a pod, for the fix beside a limit that is broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.quantity import format_nano
from webhook.model.resources import parse_gpu_resource
from webhook.policy.compiled import AmountRule, LimitRules

AmountBound = tuple[AmountRule, int]
"""A rule, and what its amounts are multiplied by."""


class BindingLimits(NamedTuple):
    """What a fix has to satisfy: every section that speaks about the pod, and how many devices the pod asks for.

    Attributes:
        alone: True if one container asks for all the GPUs, so that its amount is the pod's.
    """

    sections: Sequence[LimitRules]
    devices: int
    single_container: bool

    def pod_bounds(self, name: str) -> list[AmountBound]:
        """The rules over a pod's total of a resource, with what their amounts are multiplied by."""
        found = [(rule, 1) for section in self.sections for rule in section.per_pod.rules_for(name)]
        if parse_gpu_resource(name) is not None:
            return found + self._each_container_bounds(name) if self.single_container else found
        per_gpu = [rule for section in self.sections for rule in section.per_gpu.rules_for(name)] if self.devices else []
        return found + [(rule, self.devices) for rule in per_gpu]

    def container_bounds(self, name: str) -> list[AmountBound]:
        """The same over what one container asks for."""
        if self.single_container and parse_gpu_resource(name) is not None:
            return self.pod_bounds(name)
        return self._each_container_bounds(name)

    def _each_container_bounds(self, name: str) -> list[AmountBound]:
        return [(rule, 1) for section in self.sections for rule in section.per_container.rules_for(name)]


def nearest_allowed_amounts(together: Sequence[AmountBound], amount: int) -> str:
    """One sentence with the nearest amounts above and below that every rule allows."""
    least = max((rule.min * times for rule, times in together if rule.min is not None), default=0)
    most = min((rule.max * times for rule, times in together if rule.max is not None), default=None)
    listed = [{choice * times for choice in rule.allowed} for rule, times in together if rule.allowed]
    choices = set.intersection(*listed) if listed else {least if most is None or amount < least else most}
    fitting = [choice for choice in choices if choice >= least and (most is None or choice <= most)]
    above = min((choice for choice in fitting if choice > amount), default=None)
    below = max((choice for choice in fitting if choice < amount), default=None)
    words = [format_nano(choice) for choice in (above, below) if choice is not None]
    return f"Write {', or '.join(words)}." if words else "No amount suits every policy that speaks: ask the admin."
