"""Remarks: what a step found, before the policy sections' modes settle what becomes of it."""

from __future__ import annotations

import msgspec

from webhook.model.modes import PolicyMode
from webhook.model.paths import FieldPath


class Violation(msgspec.Struct, frozen=True, gc=False):
    """A finding without its mode and policy.

    Attributes:
        code: A code of `webhook.model.codes`.
        path: The field, from the root of the Pod ("spec", "containers", 0, …).
        message: What must hold and what was found: one sentence, no full stop, not the path.
        fix: What to write instead: one whole sentence, or "".
        at_most: The strictest mode that fits what is known; WARN where it may still turn out well.
    """

    code: str
    path: FieldPath
    message: str
    fix: str = ""
    at_most: PolicyMode = PolicyMode.ENFORCE
