"""The models of `match`, of policies and exemptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator
from pydantic.config import JsonDict

from webhook.policy.written.values import (
    MAX_ENTRIES,
    Glob,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    SpecModel,
    Text,
    cel_rules,
    require_unique_names,
    spec_error,
)
from webhook.well_known import EXCLUDED_NAMESPACES

MAX_CONDITIONS = 64
"""The bound of Kubernetes for matchConditions."""

MAX_EXPRESSION_LENGTH = 4096

UNIQUE_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""CRD schema of a list whose entries have unique names."""

OperationName = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class SelectorExpressionSpec(SpecModel):
    """An expression of a label selector."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                " : !has(self.values) || size(self.values) == 0",
                "must have values for In and NotIn, and none for Exists and DoesNotExist",
            )
        )
    )

    key: LabelKey
    operator: SelectorOperator
    values: tuple[LabelValue, ...] = Field(default=(), max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        check_operator_values(self.operator, self.values)
        return self


def check_operator_values(operator: str, values: tuple[str, ...]) -> None:
    """Check that In and NotIn have values, and that Exists and DoesNotExist have none."""
    if operator in ("In", "NotIn") and not values:
        raise spec_error(f"have values, because the operator is {operator}", "values: [one, two]")
    if operator in ("Exists", "DoesNotExist") and values:
        raise spec_error(
            f"have no values, because the operator is {operator}", "operator: In, or remove the values", at="values"
        )


class LabelSelectorSpec(SpecModel):
    """A label selector, as in Kubernetes. An empty selector matches everything."""

    match_labels: Labels = {}
    match_expressions: tuple[SelectorExpressionSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)


class MatchConditionSpec(SpecModel):
    """A CEL expression that must evaluate to true."""

    name: Name
    expression: Annotated[str, Strict(), Field(min_length=1, max_length=MAX_EXPRESSION_LENGTH)]


def _validate_template_path(text: str) -> str:
    if not all(text.split(".")):
        raise spec_error("be keys separated by dots", "a path such as spec.template or spec.roles.*.template")
    return text


TemplatePathText = Annotated[
    str, Strict(), AfterValidator(_validate_template_path), Field(json_schema_extra={"pattern": r"^[^.]+([.][^.]+)*$"})
]


class TemplateKindSpec(SpecModel):
    """Paths of the pod templates of a custom resource; "*" matches every member of a list or map."""

    api_group: Text
    kind: Annotated[str, Strict(), Field(min_length=1)]
    paths: tuple[TemplatePathText, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    replicas: tuple[TemplatePathText, ...] = Field(default=(), max_length=MAX_ENTRIES)
    fields: Mapping[TemplatePathText, TemplatePathText] = Field(default={}, max_length=MAX_ENTRIES)


class MatchSpec(SpecModel):
    """The objects that a policy applies to. All fields must match."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            (
                "!has(self.operations) || self.operations.exists(one, one in ['CREATE', 'UPDATE'])",
                "operations must include CREATE or UPDATE; other operations are not evaluated",
            )
        )
    )

    operations: tuple[OperationName, ...] = Field(default=("CREATE", "UPDATE"), min_length=1, max_length=MAX_ENTRIES)
    resources: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MAX_ENTRIES)
    namespaces: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MAX_ENTRIES)
    exclude_namespaces: tuple[Glob, ...] = Field(default=EXCLUDED_NAMESPACES, max_length=MAX_ENTRIES)
    namespace_selector: LabelSelectorSpec = LabelSelectorSpec()
    object_selector: LabelSelectorSpec = LabelSelectorSpec()
    match_conditions: tuple[MatchConditionSpec, ...] = Field(
        default=(), max_length=MAX_CONDITIONS, json_schema_extra=UNIQUE_BY_NAME
    )
    templates: tuple[TemplateKindSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)

    @model_validator(mode="after")
    def _check_operations(self) -> Self:
        if not set(self.operations) & {"CREATE", "UPDATE"}:
            raise spec_error(
                "include CREATE or UPDATE; other operations are not evaluated",
                "operations: [CREATE, UPDATE]",
                at="operations",
            )
        return self

    @model_validator(mode="after")
    def _check_condition_names(self) -> Self:
        require_unique_names([condition.name for condition in self.match_conditions], "matchConditions", "conditions")
        return self


class ScopeSpec(SpecModel):
    """The pods that an exemption applies to. All fields must match."""

    namespaces: tuple[Glob, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    service_accounts: tuple[Name, ...] = Field(default=(), min_length=1, max_length=MAX_ENTRIES)
    object_selector: LabelSelectorSpec = LabelSelectorSpec()
