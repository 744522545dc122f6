"""What every written model shares: strict, frozen, and faults that say what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from webhook.model.field_paths import FieldPath

SPEC_ERROR = "fault"
"""The error type of the faults raised here; pydantic's own have theirs."""


class SpecModel(BaseModel):
    """What an admin writes: a misspelt key is an error with a line number, not a silent no-op."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


def spec_error(must: str, write: str, *, at: str | FieldPath = ()) -> PydanticCustomError:
    """A fault in a value: what must hold and what to write, whole sentences without "must".

    Args:
        at: A field below the value, or the path to one, where the fault is one of the whole map but shows there.
    """
    below = (at,) if isinstance(at, str) else at
    return PydanticCustomError(SPEC_ERROR, "{must}", {"must": must, "write": write, "at": below})


def require_unique_names(names: Sequence[str], field: str, of: str) -> None:
    """Let no two entries of a list have one name.

    Args:
        names: Of the entries, in their order.
        field: Where the list is, in the value that is looked at.
        of: What the entries are, in the plural.

    Raises:
        PydanticCustomError: a name is there again; the fault is at the first that is.
    """
    again = _first_repeated(names)
    if again is not None:
        raise spec_error(f"be a name that no other of the {of} has", "another name", at=(field, again, "name"))


def _first_repeated(names: Iterable[str]) -> int | None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            return index
        seen.add(name)
    return None


def cel_rules(*rules: tuple[str, str]) -> JsonDict:
    """Pairs of a CEL expression over `self` and a sentence, which an API server holds values to.

    They say in CEL what a validator beside them says in Python, as far as CEL can.
    """
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}
