"""What the engine has to say about one object: findings, each a value with code, place and fix."""

from __future__ import annotations

import msgspec

from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path


class Finding(msgspec.Struct, frozen=True, gc=False):
    """One thing found, settled by the mode of the policy section that speaks.

    Attributes:
        code: A stable code of `webhook.model.codes`, for example "GPU-S101".
        mode: ENFORCE denies, WARN is a Warning, AUDIT is noted only.
        path: The field it is about, from the root of the object judged.
        message: What must hold and what was found, one sentence without the path.
        fix: What to write instead, one sentence; empty where nothing has to be done.
        policy: Name of the policy that speaks.
        refuses_pods: True if the object is a workload that is let in, and its pods will be refused for this.
        reason: A stable word for scripts, a value of `decisions.KeepReason`; "" for codes with one reason.
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
        """The mode in the end: what its pods will meet counts, where a workload itself is only warned."""
        return PolicyMode.ENFORCE if self.denies_pods else self.mode

    def __str__(self) -> str:
        place = f"{format_path(self.path)}: " if self.path else ""
        fix = f" {self.fix}" if self.fix else ""
        return f"[{self.code}] {place}{self.message}.{fix}"


class ExemptedFinding(msgspec.Struct, frozen=True, gc=False):
    """A finding that an exemption took back, and until when (RFC 3339)."""

    finding: Finding
    exemption: str
    expires: str
