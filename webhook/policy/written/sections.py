"""The sections of a GPUPolicy. The docstrings of the models are the descriptions in the CRD."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Strict, Tag, model_validator

from webhook.model import quantity
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, OTHER_VENDOR_PREFIXES
from webhook.policy.written.match import UNIQUE_BY_NAME, LabelSelectorSpec, check_operator_values
from webhook.policy.written.values import (
    MAX_ENTRIES,
    Amount,
    ComputeShare,
    Glob,
    GpuMemory,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    Percent,
    Risk,
    SpecModel,
    Text,
    cel_rules,
    require_unique_names,
    spec_error,
)

ModeName = Literal["enforce", "warn", "audit"]
FormName = Literal["mig", "mps", "timeSlicing"]
IsolationName = Literal["hardware", "memory", "none"]
EvidenceName = Literal["declared", "observed", "default"]
EvaluateOrIgnore = Literal["evaluate", "ignore"]

FORMS_BY_ISOLATION: dict[IsolationName, tuple[FormName, ...]] = {
    "hardware": ("mig",),
    "memory": ("mig", "mps"),
    "none": ("mig", "mps", "timeSlicing"),
}
GPU_PREFIXES = ("nvidia.com/", ACCOUNTING_RESOURCE, *OTHER_VENDOR_PREFIXES)
DEFAULTABLE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""Resources that a container may request without an equal limit; a default sets only the request."""

_DEFAULT_RESOURCES_RULE = (
    "be cpu, memory or ephemeral-storage if the rule has a default: other resources need an equal limit"
)

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
    "extraDevicesEnv",
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
    "deviceAnnotations",
    "fractionAnnotations",
]


class SectionSpec(SpecModel):
    """A section of a policy; it may have a mode of its own."""

    mode: ModeName | None = None


class DefaultNeedSpec(SpecModel):
    """The need of a pod without other evidence."""

    memory: GpuMemory
    compute: ComputeShare | None = None


class RightSizingSpec(SectionSpec):
    """Replaces requests for whole GPUs with MIG slices or shared GPUs."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            (
                "!has(self.forms) || (!has(self.isolation) || self.isolation == 'hardware' ? 'mig' in self.forms"
                " : self.isolation == 'none' || self.forms.exists(form, form != 'timeSlicing'))",
                "must include a form that the isolation allows: hardware allows mig, memory also mps, none all",
            ),
            (
                "!has(self.evidence) || has(self.default) || self.evidence.exists(kind, kind != 'default')",
                "must list evidence other than default, unless the field default is set",
            ),
        )
    )

    isolation: IsolationName = "hardware"
    forms: tuple[FormName, ...] = Field(default=("mig", "mps", "timeSlicing"), min_length=1, max_length=MAX_ENTRIES)
    evidence: tuple[EvidenceName, ...] = Field(
        default=("declared", "observed", "default"), min_length=1, max_length=MAX_ENTRIES
    )
    default: DefaultNeedSpec | None = None
    margin_percent: Annotated[int, Strict(), Field(ge=0, le=1000)] = 15
    risk: Risk = Field(default="0.5%", validate_default=True)
    min_saving_percent: Percent = 20
    when_full: Literal["keep", "grow", "wait"] = "keep"
    memory_fraction: Literal["report", "patch"] = "report"
    templates: ModeName | None = None

    @model_validator(mode="after")
    def _check_forms(self) -> Self:
        if not set(self.forms) & set(FORMS_BY_ISOLATION[self.isolation]):
            needed = "memory" if "mps" in self.forms else "none"
            raise spec_error(
                f"include a form that isolation: {self.isolation} allows",
                f"forms: [mig], or isolation: {needed}",
                at="forms",
            )
        return self

    @model_validator(mode="after")
    def _check_evidence(self) -> Self:
        if self.default is None and set(self.evidence) == {"default"}:
            raise spec_error(
                "list evidence other than default, unless the field default is set",
                "evidence: [declared, observed], or add default: {memory: 8Gi}",
                at="evidence",
            )
        return self


_IS_GPU_CEL = " || ".join(f"rule.resource.startsWith('{prefix}')" for prefix in GPU_PREFIXES)


def _quantity_cel(field: str) -> str:
    """CEL: a number or text as a quantity."""
    return f"(type({field}) == int ? quantity(string({field})) : quantity({field}))"


_AMOUNT_CEL_RULES = cel_rules(
    (
        "has(self.allowed) ? !has(self.min) && !has(self.max) : has(self.min) || has(self.max) || has(self.default)",
        "must have allowed, or else min, max or default",
    ),
    (
        f"!has(self.min) || !has(self.max) || {_quantity_cel('self.min')}.compareTo({_quantity_cel('self.max')}) <= 0",
        "min must be at most max",
    ),
    (
        f"!has(self.default) || self.resource in {list(DEFAULTABLE_RESOURCES)}",
        f"resource must {_DEFAULT_RESOURCES_RULE}",
    ),
    (
        "!has(self.default)"
        f" || (!has(self.min) || {_quantity_cel('self.min')}.compareTo({_quantity_cel('self.default')}) <= 0)"
        f" && (!has(self.max) || {_quantity_cel('self.max')}.compareTo({_quantity_cel('self.default')}) >= 0)"
        " && (!has(self.allowed) || self.allowed.exists(amount,"
        f" {_quantity_cel('amount')}.compareTo({_quantity_cel('self.default')}) == 0))",
        "default must be an amount that the rule allows",
    ),
    (
        "!self.resource.startsWith('nvidia.com/')"
        f" || (!has(self.min) || {_quantity_cel('self.min')}.isInteger())"
        f" && (!has(self.max) || {_quantity_cel('self.max')}.isInteger())"
        f" && (!has(self.allowed) || self.allowed.all(amount, {_quantity_cel('amount')}.isInteger()))",
        "must be whole numbers, because GPUs are counted in units",
    ),
)


class AmountRuleSpec(SpecModel):
    """Bounds, allowed amounts or a default for one resource."""

    model_config = ConfigDict(json_schema_extra=_AMOUNT_CEL_RULES)

    resource: Glob
    allowed: tuple[Amount, ...] | None = Field(default=None, min_length=1, max_length=MAX_ENTRIES)
    min: Amount | None = None
    max: Amount | None = None
    default: Amount | None = None

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        self._check_bounds()
        self._check_default()
        if self.resource.startswith("nvidia.com/"):
            self._check_whole()
        return self

    def _check_bounds(self) -> None:
        bounds = (self.min, self.max, self.default)
        if self.allowed is None and all(bound is None for bound in bounds):
            raise spec_error("have allowed, min, max or default", f"resource: {self.resource} and max: 8")
        if self.allowed is not None and (self.min is not None or self.max is not None):
            raise spec_error("not be combined with min or max", "only allowed, or only min and max", at="allowed")
        if self.min is not None and self.max is not None and self.min > self.max:
            maximum = quantity.format_nano(self.max)
            raise spec_error(
                f"be at most max, which is {maximum}", f"min: {maximum} or less, or increase max", at="min"
            )

    def _check_default(self) -> None:
        if self.default is None:
            return
        if self.resource.startswith(GPU_PREFIXES):
            raise spec_error(
                "not be set for GPUs, because sidecars would get one too", "the rule without a default", at="default"
            )
        if self.resource not in DEFAULTABLE_RESOURCES:
            raise spec_error(
                _DEFAULT_RESOURCES_RULE, "cpu, memory or ephemeral-storage, or remove the default", at="resource"
            )
        above = self.max is not None and self.default > self.max
        below = self.min is not None and self.default < self.min
        if above or below or (self.allowed is not None and self.default not in self.allowed):
            raise spec_error("be an amount that the rule allows", "an allowed amount", at="default")

    def _check_whole(self) -> None:
        for name in ("min", "max"):
            value = getattr(self, name)
            if value is not None and value % quantity.NANO:
                below = value // quantity.NANO
                lower = f"{name}: {below} or " if below else ""
                must = "be a whole number, because GPUs are counted in units"
                raise spec_error(must, f"{lower}{name}: {below + 1}", at=name)
        if any(value % quantity.NANO for value in self.allowed or ()):
            raise spec_error("be whole numbers, because GPUs are counted in units", "allowed: [1, 2, 4]", at="allowed")


class LimitsSpec(SectionSpec):
    """Bounds what a pod may request."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            (
                f"!has(self.perGPU) || !self.perGPU.exists(rule, ({_IS_GPU_CEL}))",
                "perGPU must not have rules for GPUs; write them under perPod",
            ),
            (
                "!has(self.perPod) || !self.perPod.exists(rule, has(rule.default))",
                "perPod must have no default, because defaults apply to containers",
            ),
        )
    )

    per_pod: tuple[AmountRuleSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    per_container: tuple[AmountRuleSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    per_gpu: tuple[AmountRuleSpec, ...] = Field(default=(), alias="perGPU", max_length=MAX_ENTRIES)
    limit_ranges: EvaluateOrIgnore = "evaluate"
    limit_range_injected: Literal["warn", "keep", "remove"] = "warn"
    resource_quotas: EvaluateOrIgnore = "evaluate"
    accounting: Literal["native", "off"] = "off"
    accounting_scheduler: Literal["unknown", "configured"] = "unknown"

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if any(rule.resource.startswith(GPU_PREFIXES) for rule in self.per_gpu):
            raise spec_error("not have rules for GPUs", "the rule under perPod", at="perGPU")
        if any(rule.default is not None for rule in self.per_pod):
            raise spec_error(
                "have no default, because defaults apply to containers",
                "the default under perContainer or perGPU",
                at="perPod",
            )
        with_default: set[str] = set()
        for key, rules in (("perContainer", self.per_container), ("perGPU", self.per_gpu)):
            for rule in rules:
                if rule.default is not None and rule.resource in with_default:
                    raise spec_error("set at most one default per resource", f"one default for {rule.resource}", at=key)
                if rule.default is not None:
                    with_default.add(rule.resource)
        return self


MAX_GPU_MILLI = 10**12

GpuMilli = Annotated[int, Strict(), Field(ge=0, le=MAX_GPU_MILLI)]


class SharedQuotaSpec(SpecModel):
    """A quota that several namespaces share, in thousandths of a GPU."""

    name: Name
    gpu_milli: GpuMilli
    namespace_selector: LabelSelectorSpec = LabelSelectorSpec()
    product: Glob | None = None


class QuotasSpec(SectionSpec):
    """GPU quotas that several namespaces share."""

    shared: tuple[SharedQuotaSpec, ...] = Field(default=(), max_length=MAX_ENTRIES, json_schema_extra=UNIQUE_BY_NAME)

    @model_validator(mode="after")
    def _check_quota_names(self) -> Self:
        require_unique_names([quota.name for quota in self.shared], "shared", "quotas")
        return self


NodeOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class TolerationSpec(SpecModel):
    """A toleration. It needs a key, because without one it would tolerate every taint, including not-ready."""

    key: LabelKey
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, Strict(), Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_toleration(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise spec_error(
                "have no value, because the operator is Exists", "operator: Equal, or remove the value", at="value"
            )
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise spec_error(
                "have effect: NoExecute, because tolerationSeconds is set",
                "effect: NoExecute, or remove tolerationSeconds",
                at="tolerationSeconds",
            )
        return self


class NodeExpressionSpec(SpecModel):
    """An expression over node labels."""

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
    """`offer: auto` requires the node labels of the requested GPU; `required` adds expressions."""

    offer: Literal["auto", "ignore"] = "auto"
    required: tuple[NodeExpressionSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)


def _auto_tag(value: Any) -> str:
    return "auto" if isinstance(value, str) else "else"


_Auto = Annotated[Literal["auto"], Tag("auto")]


class InjectionSpec(SectionSpec):
    """Fields to add to pods that request GPUs. What the user wrote is never changed."""

    tolerations: (
        Annotated[_Auto | Annotated[tuple[TolerationSpec, ...], Tag("else")], Discriminator(_auto_tag)] | None
    ) = None
    node_affinity: Annotated[_Auto | Annotated[NodeAffinitySpec, Tag("else")], Discriminator(_auto_tag)] | None = None
    runtime_class_name: Name | None = None
    spread: Literal["preferred", "required", "off"] = "off"
    labels: Labels = {}

    @property
    def toleration_list(self) -> tuple[TolerationSpec, ...]:
        """The listed tolerations; none for `auto`."""
        return () if self.tolerations is None or isinstance(self.tolerations, str) else self.tolerations

    @property
    def required_expressions(self) -> tuple[NodeExpressionSpec, ...]:
        """The required node expressions; none for `auto`."""
        affinity = self.node_affinity
        return () if affinity is None or isinstance(affinity, str) else affinity.required


class TopologySpec(SectionSpec):
    """NVLink and multi-node placement of pods with several GPUs."""

    nvlink: Literal["required", "preferred", "ignored"] = "ignored"
    when_gpus_at_least: Annotated[int, Strict(), Field(ge=1, le=1024)] = Field(default=2, alias="whenGPUsAtLeast")
    multi_node_domain: LabelKey | None = None


class CudaSpec(SectionSpec):
    """Compares the CUDA version that an image needs with the drivers of the nodes."""

    driver: EvaluateOrIgnore = "evaluate"


class SecuritySpec(SectionSpec):
    """Denies pods that bypass the GPU request."""

    deny: tuple[Bypass, ...] = Field(default=(), max_length=MAX_ENTRIES)
    allowed_runtime_classes: tuple[Name, ...] = Field(default=(), max_length=MAX_ENTRIES)
    allowed_driver_capabilities: tuple[Text, ...] = Field(default=(), max_length=MAX_ENTRIES)
