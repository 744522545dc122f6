"""Findings: values with code, mode, field, message and fix."""

from __future__ import annotations

import msgspec

from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path


class Finding(msgspec.Struct, frozen=True, gc=False):
    """One finding about an object, in the mode of its policy section.

    Attributes:
        code: A stable code of `webhook.model.codes`, for example "GPU-S101".
        mode: ENFORCE denies, WARN returns a warning, AUDIT only records.
        path: The field, from the root of the object.
        message: The requirement and the value found: one sentence without the path.
        fix: The correction, one sentence; empty if nothing has to be done.
        policy: Name of the policy.
        denies_pods: True if the object is a workload that is admitted, but whose pods will be denied.
        reason: A stable word for scripts, for example a value of `decisions.KeepReason`; "" for most codes.
    """

    code: str
    mode: PolicyMode
    path: FieldPath
    message: str
    fix: str = ""
    policy: str = ""
    denies_pods: bool = False
    reason: str = ""

    @property
    def effective_mode(self) -> PolicyMode:
        """The mode that applies to the object's pods, if it is a workload."""
        return PolicyMode.ENFORCE if self.denies_pods else self.mode

    def __str__(self) -> str:
        place = f"{format_path(self.path)}: " if self.path else ""
        fix = f" {self.fix}" if self.fix else ""
        return f"[{self.code}] {place}{self.message}.{fix}"


class ExemptedFinding(msgspec.Struct, frozen=True, gc=False):
    """A finding removed by an exemption, and the exemption's expiry (RFC 3339)."""

    finding: Finding
    exemption: str
    expires: str
