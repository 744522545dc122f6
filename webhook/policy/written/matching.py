"""The `match` of a policy and of an exemption: which objects it speaks about."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from webhook.policy.written.base import Written, fault
from webhook.policy.written.values import Glob, LabelKey, Labels, LabelValue, Name, Text

DEFAULT_EXCLUDED = ("kube-system", "gpu-operator", "rightslice-system")
"""Namespaces that keep a cluster and its GPUs running: a policy that blocks them blocks its own repair."""

MAX_CONDITIONS = 64
"""Kubernetes' own bound on matchConditions."""

MAX_EXPRESSION = 4096

OperationName = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist"]


class SelectorExpression(Written):
    """One expression of a label selector."""

    key: LabelKey
    operator: SelectorOperator
    values: tuple[LabelValue, ...] = ()

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
    match_expressions: tuple[SelectorExpression, ...] = ()


class WrittenCondition(Written):
    """A CEL condition."""

    name: Name
    expression: Annotated[str, Strict(), Field(min_length=1, max_length=MAX_EXPRESSION)]


def _path(text: str) -> str:
    if not all(text.split(".")):
        raise fault("be keys with dots between them", "a path such as spec.template or spec.roles.*.template")
    return text


class TemplateKind(Written):
    """Where the pod templates of a custom resource stand; "*" is every member of a list or map."""

    api_group: Text
    kind: Annotated[str, Strict(), Field(min_length=1)]
    paths: tuple[Annotated[str, Strict(), AfterValidator(_path)], ...] = Field(min_length=1)


class WrittenMatch(Written):
    """Which objects a policy speaks about. Everything given must hold."""

    operations: tuple[OperationName, ...] = Field(default=("CREATE", "UPDATE"), min_length=1)
    resources: tuple[Glob, ...] | None = Field(default=None, min_length=1)
    namespaces: tuple[Glob, ...] | None = Field(default=None, min_length=1)
    exclude_namespaces: tuple[Glob, ...] = DEFAULT_EXCLUDED
    namespace_selector: Selector = Selector()
    object_selector: Selector = Selector()
    match_conditions: tuple[WrittenCondition, ...] = Field(default=(), max_length=MAX_CONDITIONS)
    templates: tuple[TemplateKind, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [condition.name for condition in self.match_conditions]
        if len(set(names)) < len(names):
            raise fault("have match conditions with different names", "another name", at="matchConditions")
        return self


class WrittenScope(Written):
    """What an exemption holds for."""

    namespaces: tuple[Glob, ...] = Field(min_length=1)
    service_accounts: tuple[Name, ...] = Field(default=(), min_length=1)
    object_selector: Selector = Selector()
