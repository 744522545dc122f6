"""The `match` of a policy and of an exemption: which objects it speaks about."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator
from pydantic.config import JsonDict

from webhook.policy.written.base import SpecModel, cel_rules, require_unique_names, spec_error
from webhook.policy.written.values import MAX_ENTRIES, Glob, LabelKey, Labels, LabelValue, Name, Text
from webhook.well_known import SYSTEM_NAMESPACE

DEFAULT_EXCLUDED_NAMESPACES = ("kube-system", "gpu-operator", SYSTEM_NAMESPACE)
"""Namespaces that keep a cluster and its GPUs running: a policy that blocks them blocks its own repair."""

MAX_CONDITIONS = 64
"""Kubernetes' own bound on matchConditions."""

MAX_EXPRESSION_LENGTH = 4096

UNIQUE_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""To an API server: a list in which no two entries have one name."""

OperationName = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class SelectorExpressionSpec(SpecModel):
    """One expression of a label selector."""

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
    """In and NotIn need values; Exists and DoesNotExist take none."""
    if operator in ("In", "NotIn") and not values:
        raise spec_error(f"have values, because the operator is {operator}", "values: [one, two]")
    if operator in ("Exists", "DoesNotExist") and values:
        raise spec_error(
            f"have no values, because the operator is {operator}", "operator: In, or no values", at="values"
        )


class LabelSelectorSpec(SpecModel):
    """A label selector, as in Kubernetes: everything given must hold; an empty one lets everything in."""

    match_labels: Labels = {}
    match_expressions: tuple[SelectorExpressionSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)


class MatchConditionSpec(SpecModel):
    """A CEL condition."""

    name: Name
    expression: Annotated[str, Strict(), Field(min_length=1, max_length=MAX_EXPRESSION_LENGTH)]


def _validate_template_path(text: str) -> str:
    if not all(text.split(".")):
        raise spec_error("be keys with dots between them", "a path such as spec.template or spec.roles.*.template")
    return text


TemplatePathText = Annotated[
    str, Strict(), AfterValidator(_validate_template_path), Field(json_schema_extra={"pattern": r"^[^.]+([.][^.]+)*$"})
]


class TemplateKindSpec(SpecModel):
    """Where the pod templates of a custom resource stand; "*" is every member of a list or map."""

    api_group: Text
    kind: Annotated[str, Strict(), Field(min_length=1)]
    paths: tuple[TemplatePathText, ...] = Field(min_length=1, max_length=MAX_ENTRIES)


class MatchSpec(SpecModel):
    """Which objects a policy speaks about. Everything given must hold."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            (
                "!has(self.operations) || self.operations.exists(one, one in ['CREATE', 'UPDATE'])",
                "must have CREATE or UPDATE among its operations: of others nothing is said",
            )
        )
    )

    operations: tuple[OperationName, ...] = Field(default=("CREATE", "UPDATE"), min_length=1, max_length=MAX_ENTRIES)
    resources: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MAX_ENTRIES)
    namespaces: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MAX_ENTRIES)
    exclude_namespaces: tuple[Glob, ...] = Field(default=DEFAULT_EXCLUDED_NAMESPACES, max_length=MAX_ENTRIES)
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
                "have CREATE or UPDATE among its entries: of others nothing is said",
                "operations: [CREATE, UPDATE]",
                at="operations",
            )
        return self

    @model_validator(mode="after")
    def _check_condition_names(self) -> Self:
        require_unique_names([condition.name for condition in self.match_conditions], "matchConditions", "conditions")
        return self


class ScopeSpec(SpecModel):
    """What an exemption holds for."""

    namespaces: tuple[Glob, ...] = Field(min_length=1, max_length=MAX_ENTRIES)
    service_accounts: tuple[Name, ...] = Field(default=(), min_length=1, max_length=MAX_ENTRIES)
    object_selector: LabelSelectorSpec = LabelSelectorSpec()
