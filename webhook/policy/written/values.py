"""The scalars of a policy: names, globs, labels, amounts, times. Each is checked where it is written."""

from __future__ import annotations

import difflib
import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, Strict, WithJsonSchema

from webhook.errors import QuantityError
from webhook.model import quantity
from webhook.model.codes import CODES
from webhook.policy.written.base import fault, held

MAX_NAME = 253
MAX_LABEL = 63
MAX_LABELS = 64
MANY = 256
"""Entries of a list or map. An API server wants to know how much there can be at most."""

ONE_SLIP = 0.85
"""How like a code a text is that has one character wrong: 14 of 16. Two wrong, and any of a dozen may be meant."""

MIB = quantity.NANO << 20
MOST_LIKELY_MIB = 512
"""A bare number from here on was meant in MiB: no GPU has 512 GiB, and no need is below 512 MiB."""

_GLOB = re.compile(r"[A-Za-z0-9._/*?-]+\Z", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z", re.ASCII)
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z", re.ASCII)
_PERCENT = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%\Z", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)

Text = Annotated[str, Strict()]
Sentence = Annotated[str, Strict(), Field(max_length=1024)]
Whole = Annotated[int, Strict()]
Percent = Annotated[int, Strict(), Field(ge=0, le=100)]


def _bare(pattern: re.Pattern[str]) -> str:
    """An expression without its end."""
    return pattern.pattern.removesuffix(r"\Z")


def _glob(text: str) -> str:
    if len(text) > MAX_NAME:
        raise fault(f"be at most {MAX_NAME} characters", "a shorter pattern")
    if not _GLOB.match(text):
        raise fault("be a name, or a pattern of a name with * and ?", "letters, digits, -, ., / and the wildcards")
    return text


def _name(text: str) -> str:
    if len(text) > MAX_NAME or not _NAME.match(text):
        raise fault("be a name of lower-case letters, digits, - and .", 'a name such as "team-vision"')
    return text


def _label_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    well_prefixed = not slash or (len(prefix) <= MAX_NAME and _NAME.match(prefix))
    if not well_prefixed or len(name) > MAX_LABEL or not _LABEL_PART.match(name):
        raise fault(
            f"be a label key: at most {MAX_LABEL} letters, digits, -, _ and . after an optional domain and /",
            "a key such as example.com/team",
        )
    return text


def _label_value(text: str) -> str:
    if text and (len(text) > MAX_LABEL or not _LABEL_PART.match(text)):
        raise fault(
            f"be a label value: at most {MAX_LABEL} letters, digits, -, _ and ., with a letter or digit at both ends",
            "a shorter or plainer value",
        )
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise fault("say why, in a few words", 'a reason such as "INC-4711: driver hang"')
    return text


_ALL_CODES = [code for code in CODES if not code.startswith("GPU-P1")]


def _code(text: str) -> str:
    if text not in _ALL_CODES:
        whole = f"GPU-{text[:20].upper().removeprefix('GPU').lstrip('-')}"
        near = difflib.get_close_matches(whole, _ALL_CODES, n=1, cutoff=ONE_SLIP)
        raise fault("be a finding code", near[0] if near else "one of docs/codes.md: rightslice explain lists them")
    return text


def _time(found: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(found.upper()) if isinstance(found, str) and _RFC3339.match(found) else None
    except ValueError:
        moment = None
    if moment is None:
        raise fault("be a time with its zone (RFC 3339)", '"2026-12-01T00:00:00Z"')
    return moment


def _amount(found: Any) -> int:
    """A quantity in nano-units."""
    if isinstance(found, bool) or not isinstance(found, (str, int, float)):
        raise fault("be a quantity", "a quantity such as 1, 500m or 8Gi")
    try:
        value = quantity.nano(found)
    except QuantityError:
        raise fault("be a quantity", "a quantity such as 1, 500m or 8Gi") from None
    if value < 0:
        raise fault("be a quantity of zero or more", "a quantity such as 1, 500m or 8Gi")
    return value


def _gpu_memory(found: Any) -> int:
    """GPU memory in MiB."""
    value = _amount(found)
    if value < MIB:
        number = int(found) if str(found).isdecimal() and len(str(found)) < 9 else 0
        raise fault(
            "be an amount of GPU memory of 1Mi or more (a bare number is bytes)",
            f"{number or 8}{'Mi' if number >= MOST_LIKELY_MIB else 'Gi'}",
        )
    return quantity.mebibytes(found)


def _share(found: Any) -> int:
    """A share of a card's compute in thousandths."""
    match = _PERCENT.match(found) if isinstance(found, str) else None
    share = int(match[1]) * 10 + int(match[2] or 0) if match else 0
    if not 0 < share <= 1000:
        number = found if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= 100 else 20
        raise fault("be a share of one GPU in percent, above 0% and at most 100%", f'"{number}%"')
    return share


def _risk(found: Any) -> int:
    """A risk an hour in millionths."""
    if not isinstance(found, str) or not _RISK.fullmatch(found):
        raise fault("be a risk for each hour of a pod in percent, from 0.001% to 50%", '"0.5%"')
    return int(Decimal(found.removesuffix("%")) * 10_000)


def _text(most: int, pattern: str) -> WithJsonSchema:
    """What an API server holds a text to."""
    return WithJsonSchema({"type": "string", "maxLength": most, "pattern": f"^({pattern})$"})


_SOME_RISK = r"50|[1-4]?[1-9](\.[0-9]{1,3})?|[1-4]0(\.[0-9]{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])"
_RISK = re.compile(f"({_SOME_RISK})%", re.ASCII)
_SOME_SHARE = r"100(\.0)?|0?([1-9][0-9]|0?[1-9])(\.[0-9])?|0{1,3}\.[1-9]"
_QUANTITY: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maxLength": 64,
    "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
}
_IS_MEMORY = held(
    (
        "(type(self) == int ? quantity(string(self)) : quantity(self)).compareTo(quantity('1Mi')) >= 0",
        "must be an amount of GPU memory of 1Mi or more (a bare number is bytes)",
    )
)

Glob = Annotated[str, Strict(), AfterValidator(_glob), _text(MAX_NAME, _bare(_GLOB))]
Name = Annotated[str, Strict(), AfterValidator(_name), _text(MAX_NAME, _bare(_NAME))]
LabelKey = Annotated[
    str,
    Strict(),
    AfterValidator(_label_key),
    _text(MAX_NAME + 1 + MAX_LABEL, f"({_bare(_NAME)}/)?{_bare(_LABEL_PART)}"),
]
LabelValue = Annotated[str, Strict(), AfterValidator(_label_value), _text(MAX_LABEL, f"({_bare(_LABEL_PART)})?")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
Reason = Annotated[
    str, Strict(), AfterValidator(_not_blank), Field(max_length=1024, json_schema_extra={"pattern": r"\S"})
]
FindingCode = Annotated[str, Strict(), AfterValidator(_code), WithJsonSchema({"type": "string", "enum": _ALL_CODES})]
Time = Annotated[datetime, PlainValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
Amount = Annotated[int, PlainValidator(_amount), WithJsonSchema(_QUANTITY)]
GpuMemory = Annotated[int, PlainValidator(_gpu_memory), WithJsonSchema(_QUANTITY | _IS_MEMORY)]
ComputeShare = Annotated[int, PlainValidator(_share), _text(6, f"({_SOME_SHARE})%")]
Risk = Annotated[int, PlainValidator(_risk), _text(7, f"({_SOME_RISK})%")]
