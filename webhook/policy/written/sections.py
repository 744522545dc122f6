"""The sections of a policy that right-size, limit and guard, as an admin writes them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, Strict, model_validator

from webhook.model import quantity
from webhook.model.resources import ACCOUNTING, FOREIGN_PREFIXES
from webhook.policy.written.base import Written, fault, held
from webhook.policy.written.values import (
    MANY,
    Amount,
    ComputeShare,
    Glob,
    GpuMemory,
    LabelKey,
    Name,
    Percent,
    Risk,
    Text,
)

ModeName = Literal["enforce", "warn", "audit"]
FormName = Literal["mig", "mps", "timeSlicing"]
IsolationName = Literal["hardware", "memory", "none"]
EvidenceName = Literal["declared", "observed", "default"]
Evaluate = Literal["evaluate", "ignore"]

FORMS_OF: dict[IsolationName, tuple[FormName, ...]] = {
    "hardware": ("mig",),
    "memory": ("mig", "mps"),
    "none": ("mig", "mps", "timeSlicing"),
}
GPU_PREFIXES = ("nvidia.com/", ACCOUNTING, *FOREIGN_PREFIXES)
WITH_DEFAULTS = ("cpu", "memory", "ephemeral-storage")
"""What a container may request without an equal limit: a default is a request alone."""

_NAME_ONE = "name cpu, memory or ephemeral-storage where it gives a default: of all else a request needs an equal limit"

Bypass = Literal[
    "visibleDevicesEnv",
    "imexChannelsEnv",
    "migManagementEnv",
    "disableRequireEnv",
    "driverCapabilitiesEnv",
    "loaderEnv",
    "mpsEnv",
    "cudaVisibleDevicesEnv",
    "unreadableEnv",
    "privileged",
    "sysAdminCapability",
    "hostNamespaces",
    "privilegeEscalation",
    "sharedProcessNamespace",
    "userNamespaces",
    "runtimeClass",
    "cdiAnnotations",
    "hostPathDevices",
    "containerDevicesMount",
    "nodeName",
    "resourceClaims",
    "mixedGPURequests",
    "forgedAnnotations",
    "mirrorPod",
]


class Section(Written):
    """A section may be on trial inside a policy that is enforced, and the other way round."""

    mode: ModeName | None = None


class DefaultNeed(Written):
    """What a pod is taken to need when nothing else says so."""

    memory: GpuMemory
    compute: ComputeShare | None = None


class WrittenRightSizing(Section):
    """How GPU requests shrink."""

    model_config = ConfigDict(
        json_schema_extra=held(
            (
                "!has(self.forms) || (!has(self.isolation) || self.isolation == 'hardware' ? 'mig' in self.forms"
                " : self.isolation == 'none' || self.forms.exists(form, form != 'timeSlicing'))",
                "must name a form that the isolation allows: hardware allows mig, memory also mps, none all",
            ),
            (
                "!has(self.evidence) || has(self.default) || self.evidence.exists(kind, kind != 'default')",
                "must name evidence that there is: of default alone there is none without the field default",
            ),
        )
    )

    isolation: IsolationName = "hardware"
    forms: tuple[FormName, ...] = Field(default=("mig", "mps", "timeSlicing"), min_length=1, max_length=MANY)
    evidence: tuple[EvidenceName, ...] = Field(
        default=("declared", "observed", "default"), min_length=1, max_length=MANY
    )
    default: DefaultNeed | None = None
    margin_percent: Annotated[int, Strict(), Field(ge=0, le=1000)] = 15
    risk: Risk = Field(default="0.5%", validate_default=True)
    min_saving_percent: Percent = 20
    when_full: Literal["keep", "wait"] = "keep"

    @model_validator(mode="after")
    def _forms_fit(self) -> Self:
        if not set(self.forms) & set(FORMS_OF[self.isolation]):
            needed = "memory" if "mps" in self.forms else "none"
            raise fault(
                f"name a form that isolation: {self.isolation} allows",
                f"forms: [mig], or isolation: {needed}",
                at="forms",
            )
        return self

    @model_validator(mode="after")
    def _evidence_is_there(self) -> Self:
        if self.default is None and set(self.evidence) == {"default"}:
            raise fault(
                "name evidence that there is: of default alone there is none without the field default",
                "evidence: [declared, observed], or default: {memory: 8Gi} beside it",
                at="evidence",
            )
        return self


def _is_gpu(text: str) -> str:
    """In CEL: does a resource name begin as those of GPUs do?"""
    return "(" + " || ".join(f"{text}.startsWith('{prefix}')" for prefix in GPU_PREFIXES) + ")"


def _quantity(field: str) -> str:
    """In CEL: a field that is a number or a text, as a quantity."""
    return f"(type({field}) == int ? quantity(string({field})) : quantity({field}))"


_AMOUNTS = held(
    (
        "has(self.allowed) ? !has(self.min) && !has(self.max) : has(self.min) || has(self.max) || has(self.default)",
        "must have allowed alone, or min, max or default",
    ),
    (
        f"!has(self.min) || !has(self.max) || {_quantity('self.min')}.compareTo({_quantity('self.max')}) <= 0",
        "must have a min of at most max",
    ),
    (
        f"!has(self.default) || self.resource in {list(WITH_DEFAULTS)}",
        f"must {_NAME_ONE}",
    ),
    (
        "!has(self.default)"
        f" || (!has(self.min) || {_quantity('self.min')}.compareTo({_quantity('self.default')}) <= 0)"
        f" && (!has(self.max) || {_quantity('self.max')}.compareTo({_quantity('self.default')}) >= 0)"
        " && (!has(self.allowed) || self.allowed.exists(amount,"
        f" {_quantity('amount')}.compareTo({_quantity('self.default')}) == 0))",
        "must give a default that the rule itself allows",
    ),
    (
        "!self.resource.startsWith('nvidia.com/')"
        f" || (!has(self.min) || {_quantity('self.min')}.isInteger())"
        f" && (!has(self.max) || {_quantity('self.max')}.isInteger())"
        f" && (!has(self.allowed) || self.allowed.all(amount, {_quantity('amount')}.isInteger()))",
        "must have whole numbers: GPUs are counted in units",
    ),
)


class WrittenAmountRule(Written):
    """A ceiling, floor, choice or default for one resource."""

    model_config = ConfigDict(json_schema_extra=_AMOUNTS)

    resource: Glob
    allowed: tuple[Amount, ...] | None = Field(default=None, min_length=1, max_length=MANY)
    min: Amount | None = None
    max: Amount | None = None
    default: Amount | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check_something()
        self._check_order()
        self._check_default()
        if self.resource.startswith("nvidia.com/"):
            self._check_whole()
        return self

    def _check_something(self) -> None:
        bounds = (self.min, self.max, self.default)
        if self.allowed is None and all(bound is None for bound in bounds):
            raise fault("have allowed, min, max or default", f"max: 8 beside resource: {self.resource}")
        if self.allowed is not None and (self.min is not None or self.max is not None):
            raise fault("have either allowed or min and max", "allowed alone, or min and max", at="allowed")

    def _check_order(self) -> None:
        if self.min is not None and self.max is not None and self.min > self.max:
            most = quantity.written(self.max)
            raise fault(f"be at most max, which is {most}", f"min: {most} or less, or a larger max", at="min")

    def _check_default(self) -> None:
        if self.default is None:
            return
        if self.resource.startswith(GPU_PREFIXES):
            raise fault("have no default for a GPU: sidecars would get one too", "no default here", at="default")
        if self.resource not in WITH_DEFAULTS:
            raise fault(_NAME_ONE, "cpu, memory or ephemeral-storage, or no default", at="resource")
        above = self.max is not None and self.default > self.max
        below = self.min is not None and self.default < self.min
        if above or below or (self.allowed is not None and self.default not in self.allowed):
            raise fault("give a default that the rule itself allows", "an allowed default", at="default")

    def _check_whole(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if value is not None and value % quantity.NANO:
                raise fault("be a whole number: GPUs are counted in units", _whole_beside(name, value), at=name)
        if any(value % quantity.NANO for value in self.allowed or ()):
            raise fault("be whole numbers: GPUs are counted in units", "allowed: [1, 2, 4]", at="allowed")


def _whole_beside(name: str, nano: int) -> str:
    below = nano // quantity.NANO
    return f"{name}: {below + 1}" if not below else f"{name}: {below} or {name}: {below + 1}"


class WrittenLimits(Section):
    """What a pod may ask for."""

    model_config = ConfigDict(
        json_schema_extra=held(
            (
                f"!has(self.perGPU) || !self.perGPU.exists(rule, {_is_gpu('rule.resource')})",
                "must have rules under perGPU that are not about GPUs: those go under perPod",
            ),
            (
                "!has(self.perPod) || !self.perPod.exists(rule, has(rule.default))",
                "must have no default under perPod: a pod's total is given to none of its containers",
            ),
        )
    )

    per_pod: tuple[WrittenAmountRule, ...] = Field(default=(), max_length=MANY)
    per_container: tuple[WrittenAmountRule, ...] = Field(default=(), max_length=MANY)
    per_gpu: tuple[WrittenAmountRule, ...] = Field(default=(), alias="perGPU", max_length=MANY)
    limit_ranges: Evaluate = "evaluate"
    limit_range_injected: Literal["warn", "keep", "remove"] = "warn"
    resource_quotas: Evaluate = "evaluate"
    accounting: Literal["native", "off"] = "off"
    accounting_scheduler: Literal["unknown", "configured"] = "unknown"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if any(rule.resource.startswith(GPU_PREFIXES) for rule in self.per_gpu):
            raise fault("grow CPU or memory with the GPUs asked for, not GPUs", "the rule under perPod", at="perGPU")
        if any(rule.default is not None for rule in self.per_pod):
            raise fault(
                "have no default: a pod's total is given to none of its containers",
                "the default under perContainer or perGPU",
                at="perPod",
            )
        self._check_one_default()
        return self

    def _check_one_default(self) -> None:
        given: set[str] = set()
        for key, rules in (("perContainer", self.per_container), ("perGPU", self.per_gpu)):
            for rule in rules:
                if rule.default is not None and rule.resource in given:
                    raise fault("give each resource one default", f"one default for {rule.resource}", at=key)
                if rule.default is not None:
                    given.add(rule.resource)


class WrittenTopology(Section):
    """Where GPUs of one pod, and pods of one workload, should be."""

    nvlink: Literal["required", "preferred", "ignored"] = "ignored"
    when_gpus_at_least: Annotated[int, Strict(), Field(ge=1, le=1024)] = Field(default=2, alias="whenGPUsAtLeast")
    multi_node_domain: LabelKey | None = None


class WrittenCuda(Section):
    """Whether an image's CUDA need is held against the drivers of the nodes."""

    driver: Evaluate = "evaluate"


class WrittenSecurity(Section):
    """Which ways round GPU accounting are refused."""

    deny: tuple[Bypass, ...] = Field(default=(), max_length=MANY)
    allowed_runtime_classes: tuple[Name, ...] = Field(default=(), max_length=MANY)
    allowed_driver_capabilities: tuple[Text, ...] = Field(default=(), max_length=MANY)
