"""The `match` of a policy and of an exemption: which objects it speaks about."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, Strict, model_validator
from pydantic.config import JsonDict

from webhook.policy.written.base import Written, fault, held, require_own_names
from webhook.policy.written.values import MANY, Glob, LabelKey, Labels, LabelValue, Name, Text

DEFAULT_EXCLUDED = ("kube-system", "gpu-operator", "rightslice-system")
"""Namespaces that keep a cluster and its GPUs running: a policy that blocks them blocks its own repair."""

MAX_CONDITIONS = 64
"""Kubernetes' own bound on matchConditions."""

MAX_EXPRESSION = 4096

EACH_ONCE: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""To an API server: a list in which no two entries have one name."""

OperationName = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class SelectorExpression(Written):
    """One expression of a label selector."""

    model_config = ConfigDict(
        json_schema_extra=held(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
                " : !has(self.values) || size(self.values) == 0",
                "must have values for In and NotIn, and none for Exists and DoesNotExist",
            )
        )
    )

    key: LabelKey
    operator: SelectorOperator
    values: tuple[LabelValue, ...] = Field(default=(), max_length=MANY)

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        check_values(self.operator, self.values)
        return self


def check_values(operator: str, values: tuple[str, ...]) -> None:
    """In and NotIn need values; Exists and DoesNotExist take none."""
    if operator in ("In", "NotIn") and not values:
        raise fault(f"have values, because the operator is {operator}", "values: [one, two]")
    if operator in ("Exists", "DoesNotExist") and values:
        raise fault(f"have no values, because the operator is {operator}", "operator: In, or no values", at="values")


class Selector(Written):
    """A label selector, as in Kubernetes: everything given must hold; an empty one lets everything in."""

    match_labels: Labels = {}
    match_expressions: tuple[SelectorExpression, ...] = Field(default=(), max_length=MANY)


class WrittenCondition(Written):
    """A CEL condition."""

    name: Name
    expression: Annotated[str, Strict(), Field(min_length=1, max_length=MAX_EXPRESSION)]


def _path(text: str) -> str:
    if not all(text.split(".")):
        raise fault("be keys with dots between them", "a path such as spec.template or spec.roles.*.template")
    return text


TemplatePath = Annotated[
    str, Strict(), AfterValidator(_path), Field(json_schema_extra={"pattern": r"^[^.]+([.][^.]+)*$"})
]


class TemplateKind(Written):
    """Where the pod templates of a custom resource stand; "*" is every member of a list or map."""

    api_group: Text
    kind: Annotated[str, Strict(), Field(min_length=1)]
    paths: tuple[TemplatePath, ...] = Field(min_length=1, max_length=MANY)


class WrittenMatch(Written):
    """Which objects a policy speaks about. Everything given must hold."""

    model_config = ConfigDict(
        json_schema_extra=held(
            (
                "!has(self.operations) || self.operations.exists(one, one in ['CREATE', 'UPDATE'])",
                "must have CREATE or UPDATE among its operations: of others nothing is said",
            )
        )
    )

    operations: tuple[OperationName, ...] = Field(default=("CREATE", "UPDATE"), min_length=1, max_length=MANY)
    resources: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MANY)
    namespaces: tuple[Glob, ...] | None = Field(default=None, min_length=1, max_length=MANY)
    exclude_namespaces: tuple[Glob, ...] = Field(default=DEFAULT_EXCLUDED, max_length=MANY)
    namespace_selector: Selector = Selector()
    object_selector: Selector = Selector()
    match_conditions: tuple[WrittenCondition, ...] = Field(
        default=(), max_length=MAX_CONDITIONS, json_schema_extra=EACH_ONCE
    )
    templates: tuple[TemplateKind, ...] = Field(default=(), max_length=MANY)

    @model_validator(mode="after")
    def _operations_are_judged(self) -> Self:
        if not set(self.operations) & {"CREATE", "UPDATE"}:
            raise fault(
                "have CREATE or UPDATE among its entries: of others nothing is said",
                "operations: [CREATE, UPDATE]",
                at="operations",
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        require_own_names([condition.name for condition in self.match_conditions], "matchConditions", "conditions")
        return self


class WrittenScope(Written):
    """What an exemption holds for."""

    namespaces: tuple[Glob, ...] = Field(min_length=1, max_length=MANY)
    service_accounts: tuple[Name, ...] = Field(default=(), min_length=1, max_length=MANY)
    object_selector: Selector = Selector()
