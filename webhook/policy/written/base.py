"""What every written model shares: strict, frozen, and faults that say what to write instead."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

GROUP = "rightslice.dev"
API_VERSION = f"{GROUP}/v1alpha1"

FAULT = "fault"
"""The error type of the faults raised here; pydantic's own have theirs."""


class Written(BaseModel):
    """What an admin writes: a misspelt key is an error with a line number, not a silent no-op."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


def fault(must: str, write: str, *, at: str = "") -> PydanticCustomError:
    """A fault in a value: what must hold and what to write, whole sentences without "must".

    Args:
        at: A field below the value, where the fault is one of the whole map but shows there.
    """
    return PydanticCustomError(FAULT, "{must}", {"must": must, "write": write, "at": at})


def held(*rules: tuple[str, str]) -> JsonDict:
    """Pairs of a CEL expression over `self` and a sentence, which an API server holds values to.

    They say in CEL what a validator beside them says in Python, as far as CEL can.
    """
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}
