"""Which amounts would satisfy every limit that speaks about a pod, for the fix beside a limit that is broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.quantity import written
from webhook.model.resources import gpu_resource
from webhook.policy.compiled import AmountRule, Limits

Bound = tuple[AmountRule, int]
"""A rule, and what its amounts are multiplied by."""


class Speaking(NamedTuple):
    """What a fix has to satisfy: every section that speaks about the pod, and how many devices the pod asks for.

    Attributes:
        alone: True if one container asks for all the GPUs, so that its amount is the pod's.
    """

    sections: Sequence[Limits]
    devices: int
    alone: bool

    def about_pod(self, name: str) -> list[Bound]:
        """The rules over a pod's total of a resource, with what their amounts are multiplied by."""
        found = [(rule, 1) for section in self.sections for rule in section.per_pod.of(name)]
        if gpu_resource(name) is not None:
            return found + self._about_each(name) if self.alone else found
        per_gpu = [rule for section in self.sections for rule in section.per_gpu.of(name)] if self.devices else []
        return found + [(rule, self.devices) for rule in per_gpu]

    def about_container(self, name: str) -> list[Bound]:
        """The same over what one container asks for."""
        if self.alone and gpu_resource(name) is not None:
            return self.about_pod(name)
        return self._about_each(name)

    def _about_each(self, name: str) -> list[Bound]:
        return [(rule, 1) for section in self.sections for rule in section.per_container.of(name)]


def nearest_fitting(together: Sequence[Bound], amount: int) -> str:
    """One sentence with the nearest amounts above and below that every rule allows."""
    least = max((rule.min * times for rule, times in together if rule.min is not None), default=0)
    most = min((rule.max * times for rule, times in together if rule.max is not None), default=None)
    listed = [{choice * times for choice in rule.allowed} for rule, times in together if rule.allowed]
    choices = set.intersection(*listed) if listed else {least if most is None or amount < least else most}
    fitting = [choice for choice in choices if choice >= least and (most is None or choice <= most)]
    above = min((choice for choice in fitting if choice > amount), default=None)
    below = max((choice for choice in fitting if choice < amount), default=None)
    words = [written(choice) for choice in (above, below) if choice is not None]
    return f"Write {', or '.join(words)}." if words else "No amount suits every policy that speaks: ask the admin."
