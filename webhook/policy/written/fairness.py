"""The `fairShare` of a policy as an admin writes it: whose GPU time is held against what."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from webhook.policy.written.base import SpecModel
from webhook.policy.written.values import MAX_ENTRIES, LabelKey, LabelValue

Weight = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Hours = Annotated[int, Strict(), Field(ge=1, le=8760)]


class ShareSpec(SpecModel):
    """What one namespace, or one value of the label, is entitled to beside the others."""

    name: LabelValue = Field(min_length=1)
    weight: Weight


class FairShareSpec(SpecModel):
    """Nothing is refused by it: it is what `rightslice fairshare` reports against, and the extender's hint."""

    by: LabelKey = "namespace"
    half_life_hours: Hours = 168
    shares: tuple[ShareSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    default_weight: Weight = 1
