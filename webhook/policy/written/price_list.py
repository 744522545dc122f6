"""The model of GPUPriceList."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, Strict

from webhook.model.prices import MAX_PRICE, parse_micro
from webhook.policy.written.base import SpecModel, spec_error
from webhook.policy.written.kinds import MetadataSpec
from webhook.policy.written.values import Reason
from webhook.well_known import ApiVersion

MAX_PRICES = 1024
_CURRENCY = re.compile(r"[A-Z]{3}\Z", re.ASCII)


def _validate_currency(text: str) -> str:
    if not _CURRENCY.match(text):
        raise spec_error("be a currency code of three letters (ISO 4217)", "a code such as USD or EUR")
    return text


def _validate_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise spec_error("be the date of the prices", 'a date such as "2026-06-01"') from None


def _parse_price(found: Any) -> int:
    """Return millionths of the currency."""
    amount = parse_micro(str(found)) if isinstance(found, str | int | float) and not isinstance(found, bool) else None
    if amount is None:
        must = f"be the price of one GPU per hour, from 0 to {MAX_PRICE}, with at most six decimals"
        raise spec_error(must, 'an amount such as "2.50"')
    return amount


def _validate_product(text: str) -> str:
    if not text.strip():
        raise spec_error("be a product as in the node label nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB")
    return text


class PriceSpec(SpecModel):
    """The price of one product."""

    product: Annotated[str, Strict(), Field(max_length=253), AfterValidator(_validate_product)]
    per_hour: Annotated[int, PlainValidator(_parse_price)]


class GPUPriceList(SpecModel):
    """A list of GPU prices."""

    api_version: ApiVersion
    kind: Literal["GPUPriceList"]
    metadata: MetadataSpec
    currency: Annotated[str, Strict(), AfterValidator(_validate_currency)]
    as_of: Annotated[str, Strict(), AfterValidator(_validate_day)]
    source: Reason
    example: Annotated[bool, Strict()] = False
    prices: tuple[PriceSpec, ...] = Field(min_length=1, max_length=MAX_PRICES)
