"""The `rollout` of a policy as an admin writes it: for whom it is enforced first, and when it stops by itself."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict, model_validator

from webhook.policy.written.base import SpecModel, spec_error
from webhook.policy.written.values import LabelValue, Percent

Minutes = Annotated[int, Strict(), Field(ge=5, le=1440)]


class HaltOnSpec(SpecModel):
    """How many percentage points worse than the rest the share may do before the policy falls back to audit."""

    oom: Percent | None = None
    evictions: Percent | None = None
    pending: Percent | None = None
    window_minutes: Minutes = 60

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.oom is None and self.evictions is None and self.pending is None:
            raise spec_error("say what to stop on", "oom: 2, evictions: 2 or pending: 10, in percentage points")
        return self


class RolloutSpec(SpecModel):
    """A stable share of the workloads is held to the policy's modes, the others are only watched."""

    percent: Percent
    seed: LabelValue = ""
    halt_on: HaltOnSpec | None = None
