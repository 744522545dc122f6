"""The base of the pydantic models, their errors, and their CEL validation rules."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

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
