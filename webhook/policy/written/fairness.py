"""The `fairShare` of a policy as an admin writes it: whose GPU time is held against what."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from webhook.policy.written.base import Written
from webhook.policy.written.values import MANY, LabelKey, LabelValue

Weight = Annotated[int, Strict(), Field(ge=1, le=1_000_000)]
Hours = Annotated[int, Strict(), Field(ge=1, le=8760)]


class WrittenShare(Written):
    """What one namespace, or one value of the label, is entitled to beside the others."""

    name: LabelValue = Field(min_length=1)
    weight: Weight


class WrittenFairShare(Written):
    """Nothing is refused by it: it is what `rightslice fairshare` reports against, and the extender's hint."""

    by: LabelKey = "namespace"
    half_life_hours: Hours = 168
    shares: tuple[WrittenShare, ...] = Field(default=(), max_length=MANY)
    others: Weight = 1
