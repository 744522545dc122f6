"""The section of a policy that bounds several namespaces together, as an admin writes it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict, model_validator

from webhook.policy.written.base import SpecModel, require_unique_names
from webhook.policy.written.matching import UNIQUE_BY_NAME, LabelSelectorSpec
from webhook.policy.written.sections import SectionSpec
from webhook.policy.written.values import MAX_ENTRIES, Glob, Name

MAX_GPU_MILLI = 10**12
"""A thousand million GPUs."""

GpuMilli = Annotated[int, Strict(), Field(ge=0, le=MAX_GPU_MILLI)]


class SharedQuotaSpec(SpecModel):
    """A ceiling that namespaces share, in thousandths of a GPU."""

    name: Name
    gpu_milli: GpuMilli
    namespace_selector: LabelSelectorSpec = LabelSelectorSpec()
    product: Glob | None = None


class QuotasSpec(SectionSpec):
    """What the pods of several namespaces may hold together."""

    shared: tuple[SharedQuotaSpec, ...] = Field(default=(), max_length=MAX_ENTRIES, json_schema_extra=UNIQUE_BY_NAME)

    @model_validator(mode="after")
    def _check_quota_names(self) -> Self:
        require_unique_names([quota.name for quota in self.shared], "shared", "quotas")
        return self
