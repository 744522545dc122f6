"""The `injection` section as an admin writes it: what is added to a pod that asks for GPUs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Strict, Tag, model_validator

from webhook.policy.written.base import Written, fault
from webhook.policy.written.matching import check_values
from webhook.policy.written.sections import Section
from webhook.policy.written.values import MANY, LabelKey, Labels, LabelValue, Name

NodeOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class WrittenToleration(Written):
    """A toleration. One without a key would tolerate every taint, "not ready" included, so a key is due."""

    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Strict(), Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise fault("have no value, because the operator is Exists", "operator: Equal, or no value", at="value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise fault(
                "have effect: NoExecute, because tolerationSeconds is set",
                "effect: NoExecute, or no tolerationSeconds",
                at="tolerationSeconds",
            )
        return self


class NodeExpression(Written):
    """One expression about node labels."""

    key: LabelKey
    operator: NodeOperator
    values: tuple[LabelValue, ...] = Field(default=(), max_length=MANY)

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        check_values(self.operator, self.values)
        if self.operator in ("Gt", "Lt") and not (len(self.values) == 1 and self.values[0].isdecimal()):
            raise fault(
                f"have one whole number as values, because the operator is {self.operator}", 'values: ["40000"]'
            )
        return self


class WrittenNodeAffinity(Written):
    """`offer: auto` reaches the nodes of the offer; `required` is added beside it."""

    offer: Literal["auto", "ignore"] = "auto"
    required: tuple[NodeExpression, ...] = Field(default=(), max_length=MANY)


def _auto_or_else(found: Any) -> str:
    return "auto" if isinstance(found, str) else "else"


_Auto = Annotated[Literal["auto"], Tag("auto")]


class WrittenInjection(Section):
    """What is added; what the user wrote stays."""

    tolerations: (
        Annotated[_Auto | Annotated[tuple[WrittenToleration, ...], Tag("else")], Discriminator(_auto_or_else)] | None
    ) = None
    node_affinity: (
        Annotated[_Auto | Annotated[WrittenNodeAffinity, Tag("else")], Discriminator(_auto_or_else)] | None
    ) = None
    runtime_class_name: Name | None = None
    spread: Literal["preferred", "required", "off"] = "off"
    labels: Labels = {}
