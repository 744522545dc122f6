"""The `injection` section as an admin writes it: what is added to a pod that asks for GPUs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Strict, Tag, model_validator

from webhook.policy.written.base import SpecModel, spec_error
from webhook.policy.written.matching import check_operator_values
from webhook.policy.written.sections import SectionSpec
from webhook.policy.written.values import MAX_ENTRIES, LabelKey, Labels, LabelValue, Name

NodeOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class TolerationSpec(SpecModel):
    """A toleration. One without a key would tolerate every taint, "not ready" included, so a key is due."""

    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Strict(), Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_toleration(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise spec_error("have no value, because the operator is Exists", "operator: Equal, or no value", at="value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise spec_error(
                "have effect: NoExecute, because tolerationSeconds is set",
                "effect: NoExecute, or no tolerationSeconds",
                at="tolerationSeconds",
            )
        return self


class NodeExpressionSpec(SpecModel):
    """One expression about node labels."""

    key: LabelKey
    operator: NodeOperator
    values: tuple[LabelValue, ...] = Field(default=(), max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        check_operator_values(self.operator, self.values)
        if self.operator in ("Gt", "Lt") and not (len(self.values) == 1 and self.values[0].isdecimal()):
            raise spec_error(
                f"have one whole number as values, because the operator is {self.operator}", 'values: ["40000"]'
            )
        return self


class NodeAffinitySpec(SpecModel):
    """`offer: auto` reaches the nodes of the offer; `required` is added beside it."""

    offer: Literal["auto", "ignore"] = "auto"
    required: tuple[NodeExpressionSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)


def _auto_tag(found: Any) -> str:
    return "auto" if isinstance(found, str) else "else"


_Auto = Annotated[Literal["auto"], Tag("auto")]


class InjectionSpec(SectionSpec):
    """What is added; what the user wrote stays."""

    tolerations: (
        Annotated[_Auto | Annotated[tuple[TolerationSpec, ...], Tag("else")], Discriminator(_auto_tag)] | None
    ) = None
    node_affinity: (
        Annotated[_Auto | Annotated[NodeAffinitySpec, Tag("else")], Discriminator(_auto_tag)] | None
    ) = None
    runtime_class_name: Name | None = None
    spread: Literal["preferred", "required", "off"] = "off"
    labels: Labels = {}
