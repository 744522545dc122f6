"""The configuration of kube-scheduler, as far as it keeps pods off nodes: no API shows it.

Without it, every scheduler counts as one with the default configuration, which excludes nodes only by the filters in
`webhook.model.filters`. What a configuration disables is ignored: more is checked then, never less.

Source: `k8s.io/kube-scheduler/config/v1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import (
    NodeAffinity,
    NodeSelectorTerm,
    ObjectMeta,
    Pod,
    PodLabelSelector,
    TopologySpreadConstraint,
)
from webhook.well_known import APP_NAME

SCHEDULER_API_VERSION = "kubescheduler.config.k8s.io/v1"
DEFAULT_SCHEDULER = "default-scheduler"
LIST = "List"
REQUIRED = "DoNotSchedule"

MODELED_PLUGINS = frozenset(
    {
        *("DefaultBinder", "DefaultPreemption", "DeferredPodScheduling", "DynamicResources", "GangScheduling"),
        *("ImageLocality", "InterPodAffinity", "NodeAffinity", "NodeDeclaredFeatures", "NodeName", "NodePorts"),
        *("NodeResourcesBalancedAllocation", "NodeResourcesFit", "NodeUnschedulable", "NodeVolumeLimits"),
        *("PodGroupPodsCount", "PodTopologySpread", "PrioritySort", "SchedulingGates", "TaintToleration"),
        *("TopologyPlacementGenerator", "VolumeBinding", "VolumeRestrictions", "VolumeZone"),
    }
)
"""The plugins of Kubernetes: they exclude no node that `webhook.model.filters` does not exclude."""


class PluginName(ApiStruct, frozen=True):
    """A plugin of one extension point."""

    name: str = ""


class PluginSet(ApiStruct, frozen=True):
    """The plugins of one extension point."""

    enabled: tuple[PluginName, ...] = ()


class SchedulerPlugins(ApiStruct, frozen=True):
    """The plugins of the extension points at which a node can be excluded."""

    multi_point: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()

    def enabled_names(self) -> Iterator[str]:
        """Yield their names."""
        for point in (self.multi_point, self.pre_filter, self.filter):
            yield from (each.name for each in point.enabled)


class PluginArgs(ApiStruct, frozen=True):
    """The arguments of the plugins PodTopologySpread and NodeAffinity that concern nodes."""

    defaulting_type: str = ""
    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    added_affinity: NodeAffinity | None = None


class PluginConfig(ApiStruct, frozen=True):
    """The arguments of one plugin."""

    name: str = ""
    args: PluginArgs = PluginArgs()


class SchedulerProfile(ApiStruct, frozen=True):
    """One profile: pods choose it by `spec.schedulerName`."""

    scheduler_name: str = DEFAULT_SCHEDULER
    plugins: SchedulerPlugins = SchedulerPlugins()
    plugin_config: tuple[PluginConfig, ...] = ()

    def args_of(self, plugin: str) -> PluginArgs:
        """Return the arguments of a plugin."""
        return next((each.args for each in self.plugin_config if each.name == plugin), PluginArgs())


class ExtenderTls(ApiStruct, frozen=True):
    """The identity of an extender."""

    server_name: str = ""


class SchedulerExtender(ApiStruct, frozen=True):
    """An extender of all profiles."""

    url_prefix: str = ""
    filter_verb: str = ""
    tls_config: ExtenderTls = ExtenderTls()

    @property
    def is_own(self) -> bool:
        """True if it is that of Rightslice, which excludes no node with a smaller GPU."""
        return APP_NAME in self.tls_config.server_name or APP_NAME in self.url_prefix


class KubeSchedulerConfiguration(ApiStruct, frozen=True):
    """The configuration of a scheduler. A file has one, without a name."""

    metadata: ObjectMeta = ObjectMeta(name="kube-scheduler")
    profiles: tuple[SchedulerProfile, ...] = (SchedulerProfile(),)
    extenders: tuple[SchedulerExtender, ...] = ()


class SchedulerRules(NamedTuple):
    """Rules of a scheduler for each of its pods, from its configuration.

    Attributes:
        spread: Required topology spread of pods that have none of their own.
        terms: Node selector terms; a node must match at least one. None without any. Topology spread ignores them.
        unmodeled: What may exclude nodes and is not modeled: a plugin or an extender; "" for nothing.
    """

    spread: tuple[TopologySpreadConstraint, ...] = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None
    unmodeled: str = ""


USUAL_RULES = SchedulerRules()
"""Of the default configuration."""

Schedulers = Mapping[str, SchedulerRules]
"""The rules of each profile by the name of the scheduler."""

NO_SCHEDULERS: Schedulers = {}


def rules_of_scheduler(schedulers: Schedulers, name: str) -> SchedulerRules:
    """Return the rules of the scheduler that a pod names; "" for the default one."""
    return schedulers.get(name or DEFAULT_SCHEDULER, USUAL_RULES)


def collect_schedulers(configurations: Iterable[KubeSchedulerConfiguration]) -> Schedulers:
    """Return the rules of all profiles."""
    found = {}
    for configuration in configurations:
        foreign = (each for each in configuration.extenders if each.filter_verb and not each.is_own)
        extender = next((f"extender {each.url_prefix}" for each in foreign), "")
        for profile in configuration.profiles:
            found[profile.scheduler_name] = _rules_of_profile(profile, extender)
    return found


def _rules_of_profile(profile: SchedulerProfile, extender: str) -> SchedulerRules:
    unknown = (name for name in profile.plugins.enabled_names() if name not in MODELED_PLUGINS)
    spread, affinity = profile.args_of("PodTopologySpread"), profile.args_of("NodeAffinity").added_affinity
    written = spread.default_constraints if spread.defaulting_type == LIST else ()
    return SchedulerRules(
        tuple(each for each in written if each.when_unsatisfiable == REQUIRED),
        affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else None,
        next((f"plugin {name}" for name in unknown), extender),
    )


def counts_peers(schedulers: Schedulers) -> bool:
    """Return whether a scheduler keeps pods off nodes by default topology spread, which counts the peers of a pod."""
    return any(rules.spread for rules in schedulers.values())


def with_default_spread(pod: Pod, rules: SchedulerRules, find_peers: Callable[[], PodLabelSelector | None]) -> Pod:
    """Return a pod with the topology spread that its scheduler gives it; itself if it has some, or gets none.

    Args:
        find_peers: Returns what selects the pods that count; None if nothing selects the pod.
    """
    spec = pod.spec
    if not rules.spread or spec.topology_spread_constraints:
        return pod
    selector = find_peers()
    if selector is None:
        return pod
    constraints = tuple([replace(each, label_selector=selector) for each in rules.spread])
    return replace(pod, spec=replace(spec, topology_spread_constraints=constraints))
