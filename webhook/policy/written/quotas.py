"""The section of a policy that bounds several namespaces together, as an admin writes it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict, model_validator

from webhook.policy.written.base import Written, require_own_names
from webhook.policy.written.matching import EACH_ONCE, Selector
from webhook.policy.written.sections import Section
from webhook.policy.written.values import MANY, Glob, Name

MOST_MILLI = 10**12
"""A thousand million GPUs."""

Milli = Annotated[int, Strict(), Field(ge=0, le=MOST_MILLI)]


class WrittenSharedQuota(Written):
    """A ceiling that namespaces share, in thousandths of a GPU."""

    name: Name
    gpu_milli: Milli
    namespace_selector: Selector = Selector()
    product: Glob | None = None


class WrittenQuotas(Section):
    """What the pods of several namespaces may hold together."""

    shared: tuple[WrittenSharedQuota, ...] = Field(default=(), max_length=MANY, json_schema_extra=EACH_ONCE)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        require_own_names([quota.name for quota in self.shared], "shared", "quotas")
        return self
