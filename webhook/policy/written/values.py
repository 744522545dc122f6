"""Types of scalar fields: names, globs, labels, amounts, times.

The base of the pydantic models, their errors, and their CEL validation rules.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from webhook.errors import QuantityError
from webhook.model import quantity
from webhook.model.codes import CODES
from webhook.model.field_paths import FieldPath

SPEC_ERROR = "spec_error"
"""Error type of `spec_error`, to tell it from the errors of pydantic."""


class SpecModel(BaseModel):
    """A model that rejects unknown fields and has camel case names in YAML."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


def spec_error(must: str, write: str, *, at: str | FieldPath = ()) -> PydanticCustomError:
    """Return an error about a value.

    Args:
        must: What must hold, without the word "must".
        write: What to write instead, without the word "Write".
        at: A field, or the path to a field, below the value where the error is located.
    """
    below = (at,) if isinstance(at, str) else at
    return PydanticCustomError(SPEC_ERROR, "{must}", {"must": must, "write": write, "at": below})


def require_unique_names(names: Sequence[str], field: str, of: str) -> None:
    """Check that the entries of a list have unique names.

    Args:
        names: Names of the entries, in order.
        field: Field of the list.
        of: Plural noun for the entries.

    Raises:
        PydanticCustomError: A name is repeated; the error is located at its first repetition.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise spec_error(f"be unique among the {of}", "another name", at=(field, index, "name"))


def cel_rules(*rules: tuple[str, str]) -> JsonDict:
    """Return CEL validation rules for the CRD, from pairs of an expression over `self` and a message.

    They repeat the Python validators of the same model, as far as CEL can express them.
    """
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


MAX_NAME = 253
MAX_LABEL = 63
MAX_LABELS = 64
MAX_ENTRIES = 256
"""Entries of a list or map. API servers require such a bound to estimate the cost of CEL rules."""

CODE_SIMILARITY = 0.85
"""Similarity of a code with one wrong character (14 of 16). With two wrong characters many codes are similar."""

MIB = quantity.NANO << 20
LIKELY_MIB_FROM = 512
"""A number without unit from here on probably means MiB, because no GPU has 512 GiB; a smaller one means GiB."""

_GLOB = re.compile(r"[A-Za-z0-9._/*?-]+\Z", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z", re.ASCII)
_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z", re.ASCII)
_PERCENT = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?%\Z", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII)

Text = Annotated[str, Strict()]
Sentence = Annotated[str, Strict(), Field(max_length=1024)]
Percent = Annotated[int, Strict(), Field(ge=0, le=100)]


def _without_end_anchor(pattern: re.Pattern[str]) -> str:
    """Return a pattern without its end anchor."""
    return pattern.pattern.removesuffix(r"\Z")


def _validate_glob(text: str) -> str:
    if len(text) > MAX_NAME:
        raise spec_error(f"be at most {MAX_NAME} characters", "a shorter pattern")
    if not _GLOB.match(text):
        raise spec_error("be a name, or a pattern with * and ?", "only letters, digits, -, ., /, * and ?")
    return text


def _validate_name(text: str) -> str:
    if len(text) > MAX_NAME or not _NAME.match(text):
        raise spec_error("be a name of lowercase letters, digits, - and .", 'a name such as "team-vision"')
    return text


def _validate_label_key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    well_prefixed = not slash or (len(prefix) <= MAX_NAME and _NAME.match(prefix))
    if not well_prefixed or len(name) > MAX_LABEL or not _LABEL_PART.match(name):
        raise spec_error(
            f"be a label key: at most {MAX_LABEL} letters, digits, -, _ and . after an optional domain and /",
            "a key such as example.com/team",
        )
    return text


def _validate_label_value(text: str) -> str:
    if text and (len(text) > MAX_LABEL or not _LABEL_PART.match(text)):
        raise spec_error(
            f"be a label value: at most {MAX_LABEL} letters, digits, -, _ and ., with a letter or digit at both ends",
            "a valid label value",
        )
    return text


def _validate_reason(text: str) -> str:
    if not text.strip():
        raise spec_error("give a reason", 'a reason such as "INC-4711: driver hang"')
    return text


_EXEMPTIBLE_CODES = [code for code in CODES if not code.startswith("GPU-P1")]


def _validate_code(text: str) -> str:
    if text not in _EXEMPTIBLE_CODES:
        whole = f"GPU-{text[:20].upper().removeprefix('GPU').lstrip('-')}"
        near = difflib.get_close_matches(whole, _EXEMPTIBLE_CODES, n=1, cutoff=CODE_SIMILARITY)
        raise spec_error("be a finding code", near[0] if near else "one of the codes that rightslice explain lists")
    return text


def _parse_time(written: Any) -> datetime:
    try:
        moment = (
            datetime.fromisoformat(written.upper()) if isinstance(written, str) and _RFC3339.match(written) else None
        )
    except ValueError:
        moment = None
    if moment is None:
        raise spec_error("be a time with a zone (RFC 3339)", '"2026-12-01T00:00:00Z"')
    return moment


def _parse_amount(written: Any) -> int:
    """Return a quantity in nano-units."""
    if isinstance(written, bool) or not isinstance(written, (str, int, float)):
        raise spec_error("be a quantity", "a quantity such as 1, 500m or 8Gi")
    try:
        value = quantity.parse_nano(written)
    except QuantityError:
        raise spec_error("be a quantity", "a quantity such as 1, 500m or 8Gi") from None
    if value < 0:
        raise spec_error("be a quantity of at least 0", "a quantity such as 1, 500m or 8Gi")
    return value


def _parse_gpu_memory(written: Any) -> int:
    """Return GPU memory in MiB."""
    value = _parse_amount(written)
    if value < MIB:
        number = int(written) if str(written).isdecimal() and len(str(written)) < 9 else 0
        raise spec_error(
            "be at least 1Mi of GPU memory (a number without unit is bytes)",
            f"{number or 8}{'Mi' if number >= LIKELY_MIB_FROM else 'Gi'}",
        )
    return quantity.parse_mebibytes(written)


def _parse_compute_share(written: Any) -> int:
    """Return a share of a GPU's compute in thousandths."""
    match = _PERCENT.match(written) if isinstance(written, str) else None
    share = int(match[1]) * 10 + int(match[2] or 0) if match else 0
    if not 0 < share <= 1000:
        number = written if isinstance(written, int) and not isinstance(written, bool) and 0 < written <= 100 else 20
        raise spec_error("be a share of one GPU in percent, above 0% and at most 100%", f'"{number}%"')
    return share


def _parse_risk(written: Any) -> int:
    """Return an hourly risk in millionths."""
    if not isinstance(written, str) or not _RISK.fullmatch(written):
        raise spec_error("be a risk per pod-hour in percent, from 0.001% to 50%", '"0.5%"')
    return int(Decimal(written.removesuffix("%")) * 10_000)


def _text_schema(most: int, pattern: str) -> WithJsonSchema:
    """Return the CRD schema of a text."""
    return WithJsonSchema({"type": "string", "maxLength": most, "pattern": f"^({pattern})$"})


_RISK_PATTERN = r"50|[1-4]?[1-9](\.[0-9]{1,3})?|[1-4]0(\.[0-9]{1,3})?|0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])"
_RISK = re.compile(f"({_RISK_PATTERN})%", re.ASCII)
_SHARE_PATTERN = r"100(\.0)?|0?([1-9][0-9]|0?[1-9])(\.[0-9])?|0{1,3}\.[1-9]"
_QUANTITY_SCHEMA: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maxLength": 64,
    "pattern": r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
}
_MEMORY_RULE = cel_rules(
    (
        "(type(self) == int ? quantity(string(self)) : quantity(self)).compareTo(quantity('1Mi')) >= 0",
        "must be at least 1Mi of GPU memory (a number without unit is bytes)",
    )
)

Glob = Annotated[str, Strict(), AfterValidator(_validate_glob), _text_schema(MAX_NAME, _without_end_anchor(_GLOB))]
Name = Annotated[str, Strict(), AfterValidator(_validate_name), _text_schema(MAX_NAME, _without_end_anchor(_NAME))]
LabelKey = Annotated[
    str,
    Strict(),
    AfterValidator(_validate_label_key),
    _text_schema(MAX_NAME + 1 + MAX_LABEL, f"({_without_end_anchor(_NAME)}/)?{_without_end_anchor(_LABEL_PART)}"),
]
LabelValue = Annotated[
    str,
    Strict(),
    AfterValidator(_validate_label_value),
    _text_schema(MAX_LABEL, f"({_without_end_anchor(_LABEL_PART)})?"),
]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)]
Reason = Annotated[
    str, Strict(), AfterValidator(_validate_reason), Field(max_length=1024, json_schema_extra={"pattern": r"\S"})
]
FindingCode = Annotated[
    str, Strict(), AfterValidator(_validate_code), WithJsonSchema({"type": "string", "enum": _EXEMPTIBLE_CODES})
]
Time = Annotated[datetime, PlainValidator(_parse_time), WithJsonSchema({"type": "string", "format": "date-time"})]
Amount = Annotated[int, PlainValidator(_parse_amount), WithJsonSchema(_QUANTITY_SCHEMA)]
GpuMemory = Annotated[int, PlainValidator(_parse_gpu_memory), WithJsonSchema(_QUANTITY_SCHEMA | _MEMORY_RULE)]
ComputeShare = Annotated[int, PlainValidator(_parse_compute_share), _text_schema(6, f"({_SHARE_PATTERN})%")]
Risk = Annotated[
    int,
    PlainValidator(_parse_risk),
    PlainSerializer(lambda ppm: f"{ppm / 10_000:g}%", return_type=str),
    _text_schema(7, f"({_RISK_PATTERN})%"),
]
