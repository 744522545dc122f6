"""Findings of policy sections: the results of steps 1 to 7, before `settle` makes them findings of a decision."""

from __future__ import annotations

import msgspec

from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath


class PolicyFinding(msgspec.Struct, frozen=True, gc=False):
    """A violation or a note of one step, before `settle` makes it a finding of a decision.

    Attributes:
        code: A code of `webhook.model.codes`.
        path: The field, from the root of the Pod ("spec", "containers", 0, …).
        message: What must hold and what was found: one sentence without full stop and path.
        fix: What to write instead: one sentence, or "".
        at_most: The strictest mode it may get; WARN where the pod may still run.
        reason: A stable word for scripts where the code has several reasons.
    """

    code: str
    path: FieldPath
    message: str
    fix: str = ""
    at_most: PolicyMode = PolicyMode.ENFORCE
    reason: str = ""


PolicyRef = tuple[PolicyMode, str]
"""A policy's name, and the mode of its section."""

SectionFinding = tuple[PolicyRef, PolicyFinding]
"""A finding, and the policy section that it is reported for."""
