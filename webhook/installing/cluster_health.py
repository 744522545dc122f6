"""Checks of `doctor` for nodes, LimitRanges and quotas, and for policies: do they load, are their names unique, and
does a server use them?

Without a Deployment, a server outside the cluster may load policy files that are unknown here. Then the status that the
server writes is reported, above all for exceptions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

import msgspec

from webhook.cache.policy_objects import READY, find_condition, policy_text
from webhook.cache.snapshot import view_of_objects
from webhook.documents.reader import is_document_file, read_documents
from webhook.engine.linting import LIMIT_RANGE, QUOTA, find_device_problems, lint_all_objects
from webhook.errors import RightsliceError, SourceLocation, abbreviate_names
from webhook.installing.facts import (
    CheckState,
    ClusterFacts,
    CurrentInstall,
    DiagnosticResult,
    parse_deployment,
    repair_command,
    runs_outside_cluster,
    unread_part_result,
)
from webhook.manifests.objects import display_name
from webhook.manifests.sent_resources import find_unsent_classes, read_sent_resources, resource_flags
from webhook.model.claims import DeviceClass, DeviceClasses, device_classes_by_name
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_pools import DevicePools, slices_by_pool
from webhook.model.dra.published_devices import MANY_SLICES, MAX_SLICES
from webhook.model.enums import FullCapacityAction
from webhook.model.field_paths import format_path
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.node_groups import (
    MACHINE_API_VERSION,
    NODE_OVERLAY_API_VERSION,
    NODE_POOL_API_VERSION,
    growing_groups,
)
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.policy.group_growth import find_group_problems
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import Policy
from webhook.report.text import pluralize
from webhook.well_known import Json


def check_nodes(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that GPU nodes have product labels."""
    if facts.nodes is None:
        yield unread_part_result(facts, "nodes", "no nodes", "")
        return
    gpus = list_gpu_nodes(facts)
    bare = [node["metadata"]["name"] for node in gpus if PRODUCT_LABEL not in (node["metadata"].get("labels") or {})]
    if not gpus and facts.slices:
        yield DiagnosticResult.ok(f"{pluralize(len(facts.slices), 'ResourceSlice')}, and no node with a device plugin")
    elif not gpus:
        yield DiagnosticResult.warn("no node advertises GPUs", "install NVIDIA's device plugin or the GPU operator")
    elif bare:
        advice = f"install GPU Feature Discovery; without the label no node affinity matches: {abbreviate_names(bare)}"
        yield DiagnosticResult.fail(
            f"{len(bare)} of {pluralize(len(gpus), 'GPU node')} without {PRODUCT_LABEL}", advice
        )
    else:
        yield DiagnosticResult.ok(f"{pluralize(len(gpus), 'GPU node')} with {PRODUCT_LABEL}")


def check_devices(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that no GPU is published twice."""
    if facts.slices is None and facts.refused["slices"].status != HTTPStatus.NOT_FOUND:
        yield unread_part_result(facts, "slices", "", "")
    view = _view_of_nodes(facts)
    if not facts.slices or isinstance(view, DiagnosticResult):
        return
    classes = _device_classes(facts)
    pools = DevicePools(slices_by_pool(facts.slices), view.fleet)
    problems = [DiagnosticResult.warn(*problem) for problem in find_device_problems(pools, classes, view.fleet)]
    slices, note = pluralize(len(facts.slices), "ResourceSlice"), MANY_SLICES if len(facts.slices) > MAX_SLICES else ""
    yield from problems or [DiagnosticResult.ok(f"no GPU of {slices} is published twice", note)]


def _device_classes(facts: ClusterFacts) -> DeviceClasses:
    return device_classes_by_name(msgspec.convert(one, DeviceClass) for one in facts.device_classes or ())


def check_sent_classes(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that the webhooks get pods by the resource name of each device class that may hold GPUs."""
    classes = _device_classes(facts)
    if facts.validating is None or not any(one.extended_resource_name for one in classes.values()):
        return
    sent = read_sent_resources(facts.validating)
    unsent = list(find_unsent_classes(classes, sent))
    names = tuple(dict.fromkeys((*sent.added, *(one.resource for one in unsent))))
    for one in unsent:
        yield DiagnosticResult.warn(str(one), f"no policy applies to them: {_send_command(facts, names)}")
    if not unsent:
        yield DiagnosticResult.ok("pods are sent to the webhooks by the resource name of each device class of GPUs")


SENT_NAMES_PAGE = "docs/install.md#gpus-under-other-names"


def _send_command(facts: ClusterFacts, names: Sequence[str]) -> str:
    """Return the command that lets the webhooks get pods by further resource names, or the page that has it."""
    current = parse_deployment(facts.deployment) if facts.deployment else CurrentInstall()
    if current.helm_release:
        values = f"--reset-then-reuse-values --set-json 'gpuResources={json.dumps(names)}'"
        return f"helm upgrade {current.helm_release} CHART --namespace {facts.namespace} {values}"
    if current.external_certificate or not repair_command(facts).startswith("rightslice install"):
        return f"add {', '.join(names)} to the match conditions ({SENT_NAMES_PAGE})"
    return f"rightslice install {resource_flags(names)}"


def list_gpu_nodes(facts: ClusterFacts) -> list[Json]:
    def has_gpus(node: Json) -> bool:
        return any(name.startswith("nvidia.com/") for name in node.get("status", {}).get("allocatable") or ())

    return [node for node in facts.nodes or () if has_gpus(node)]


def check_gpu_forms(facts: ClusterFacts, policies: Sequence[Policy]) -> Iterator[DiagnosticResult]:
    """Check that nodes advertise the forms of GPU that policies allocate."""
    sizing = [policy for policy in policies if policy.right_sizing is not None]
    if not sizing or not facts.nodes:
        return
    view = _view_of_nodes(facts)
    if isinstance(view, DiagnosticResult):
        yield view
        return
    offered = {offer.form for offer in view.fleet.offers}
    for policy in sizing:
        assert policy.right_sizing is not None
        forms = set(policy.right_sizing.forms)
        if forms & offered:
            allocated = " or ".join(sorted(forms & offered))
            yield DiagnosticResult.ok(f"policy {policy.name} allocates {allocated}, and nodes advertise it")
        else:
            advice = "no node advertises it: set the device plugin's strategy (MIG: mixed) or the policy's forms"
            yield DiagnosticResult.warn(f"policy {policy.name} allocates {' or '.join(sorted(forms))}", advice)


def check_node_groups(facts: ClusterFacts, policies: Sequence[Policy]) -> Iterator[DiagnosticResult]:
    """Check that node groups grow for what policies assign, and that no autoscaler removes nodes in use."""
    view = _view_of_nodes(facts)
    if isinstance(view, DiagnosticResult):
        return
    yield from (DiagnosticResult.warn(*problem) for problem in find_group_problems(policies, view))
    grow = FullCapacityAction.GROW
    if not any(policy.right_sizing is not None and policy.right_sizing.when_full is grow for policy in policies):
        return
    for group in growing_groups(view.fleet, view.group_sources):
        if gpus := abbreviate_names(sorted(filter(parse_gpu_resource, group.new_node.status.allocatable))):
            yield DiagnosticResult.ok(f"node group {group.name} grows for {gpus}", f"by {group.source}")


def _view_of_nodes(facts: ClusterFacts) -> ClusterView | DiagnosticResult:
    """Return the view of the nodes and of what is written about their groups, or why it cannot be built."""
    parts = (
        ("v1", "Node", facts.nodes),
        (NODE_OVERLAY_API_VERSION, "NodeOverlay", facts.overlays),
        (NODE_POOL_API_VERSION, "NodePool", facts.node_pools),
        (MACHINE_API_VERSION, "MachineDeployment", facts.machine_deployments),
        (MACHINE_API_VERSION, "MachineSet", facts.machine_sets),
    )
    objects = [{**one, "apiVersion": version, "kind": kind} for version, kind, found in parts for one in found or ()]
    try:
        return view_of_objects((one, SourceLocation(one["metadata"]["name"])) for one in objects)
    except RightsliceError as error:
        return DiagnosticResult.skip("the GPUs that nodes advertise cannot be read", str(error))


def check_limits_and_quotas(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Lint LimitRanges and quotas."""
    if facts.limit_ranges is None or facts.quotas is None:
        yield DiagnosticResult.skip("LimitRanges and quotas cannot be read")
        return
    kinds = ((LIMIT_RANGE, facts.limit_ranges), (QUOTA, facts.quotas))
    objects = [{**one, "kind": kind} for kind, found in kinds for one in found]
    classes = [one["metadata"]["name"] for one in facts.device_classes or ()]
    problems = [
        DiagnosticResult.warn(
            display_name(one), f"[{found.code}] {format_path(found.path)}: {found.message}. {found.fix}"
        )
        for one, findings in zip(objects, lint_all_objects(objects, classes), strict=True)
        for found in findings
    ]
    yield from problems or [DiagnosticResult.ok("no lint finding for LimitRanges and quotas")]


FILE_WINS = "OverriddenByFile"
"""Condition reason of an object that a file with the same name overrides, which is intended."""


def load_installed_policies(facts: ClusterFacts) -> LoadResult:
    """Load the policies of the ConfigMap, and the objects that no file overrides."""
    known = _file_policy_names(facts)
    policies = [("GPUPolicy", one) for one in facts.policies or () if one["metadata"]["name"] not in known]
    exceptions = () if runs_outside_cluster(facts) else [("GPUPolicyException", one) for one in facts.exceptions or ()]
    objects = [*policies, *exceptions]
    return load_policies(
        [*_config_map_files(facts), *((_policy_title(kind, one), policy_text(kind, one)) for kind, one in objects)]
    )


def check_policies(facts: ClusterFacts, loaded: LoadResult) -> Iterator[DiagnosticResult]:
    """Check that all policies load and have unique names."""
    if facts.policies is None:
        yield unread_part_result(facts, "policies", "the CRD of GPUPolicy is not installed", repair_command(facts))
        return
    yield from (DiagnosticResult.fail(f"{error.location.file}: {error.code}", error.message) for error in loaded.errors)
    if runs_outside_cluster(facts):
        yield from _status_results(facts, {error.location.file for error in loaded.errors})
        return
    files = _file_policy_names(facts)
    if not facts.policies and not files:
        yield DiagnosticResult.warn("no policies", "rightslice policy new NAME | kubectl apply -f -")
    elif not loaded.errors:
        objects = pluralize(len(facts.policies), "policy as an object", "policies as objects")
        yield DiagnosticResult.ok(f"{objects}, {len(files)} in the ConfigMap")
    for name in sorted(files & {one["metadata"]["name"] for one in facts.policies}):
        yield DiagnosticResult.warn(
            f"policy {name} exists in the ConfigMap and as an object", "the ConfigMap takes precedence"
        )


def _status_results(facts: ClusterFacts, invalid: set[str]) -> Iterator[DiagnosticResult]:
    advice = "only objects are checked here; /readyz?verbose of the server shows all policies"
    yield DiagnosticResult.skip("policy files of a server outside the cluster are unknown", advice)
    objects = [("GPUPolicy", one) for one in facts.policies or ()]
    objects += [("GPUPolicyException", one) for one in facts.exceptions or ()]
    titles = ((_policy_title(kind, one), one) for kind, one in objects)
    yield from (_status_result(title, one) for title, one in titles if title not in invalid)


def _status_result(name: str, one: Json) -> DiagnosticResult:
    ready = find_condition(one, READY)
    if ready is None:
        return DiagnosticResult.skip(f"{name}: no server has reported its status yet", "check that a server runs")
    if ready.get("status") == "True":
        return DiagnosticResult.ok(f"{name} is in use")
    state = CheckState.WARN if ready.get("reason") == FILE_WINS else CheckState.FAIL
    return DiagnosticResult(state, f"{name}: {ready.get('reason')}", str(ready.get("message", "")))


def _policy_title(kind: str, one: Json) -> str:
    return f"{kind} {one['metadata']['name']}"


def _file_policy_names(facts: ClusterFacts) -> set[str]:
    names: set[str] = set()
    for file, text in _config_map_files(facts):
        try:
            names |= {
                one.data["metadata"]["name"]
                for one in read_documents(text, file)
                if one.data.get("kind") == "GPUPolicy"
            }
        except (RightsliceError, KeyError, TypeError, AttributeError):
            continue
    return names


def _config_map_files(facts: ClusterFacts) -> list[tuple[str, str]]:
    data: Mapping[str, str] = (facts.settings or {}).get("data") or {}
    return [(key, text) for key, text in data.items() if is_document_file([key])]
