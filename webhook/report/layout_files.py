"""The files that apply planned layouts: ConfigMaps for NVIDIA's MIG manager and its device plugin, a script that labels
the nodes, and the policies that right-size pods to the new slices and shares.

Formats: mig-parted, `api/spec/v1/spec.go`; k8s-device-plugin, `api/config/v1/config.go`. A configuration describes a
whole node, so nodes with the same layouts share one. The name of a MIG configuration is a digest of it, so it never
changes its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from hashlib import sha256
from shlex import quote, split
from typing import NamedTuple

from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.placement.layout_plan import WHOLE_CARD, is_shared, share_of
from webhook.placement.mig import MigLayout
from webhook.placement.node_layouts import NodeChange
from webhook.report.layout_text import node_layouts_text
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import sanitize
from webhook.well_known import Json

CONFIG_MAP_FILE, SCRIPT_FILE, POLICY_FILE = "mig-config.yaml", "apply.sh", "policies.yaml"
SHARING_FILE = "device-plugin-config.yaml"
CONFIG_MAP, SHARING_CONFIG_MAP = "rightslice-mig-config", "rightslice-device-plugin-config"
OPERATOR_NAMESPACE = "gpu-operator"
ALL_WHOLE = "all-disabled"
"""NVIDIA's name of the configuration without MIG, which the MIG manager uses for nodes without a label."""
NOT_SHARED = "not-shared"
"""The configuration of the device plugin for nodes whose cards are no longer shared."""
UNCHANGED = "-"
SHARING_FIELDS = {GpuForm.MPS: "mps", GpuForm.TIME_SLICING: "timeSlicing"}
SHARING_WORDS = {GpuForm.MPS: "mps", GpuForm.TIME_SLICING: "time-slicing"}

POLICY_HEAD = """\
# The policies whose right-sizing the plan counts and that do not right-size yet: as they are, but with mode enforce for
# rightSizing, and for an injection of tolerations. Apply this file after the layouts; pods get the new slices when they
# are created. A policy that comes from a file or a repository has to be changed there.
"""

FILE_MARKS = {
    CONFIG_MAP_FILE: f"name: {CONFIG_MAP}",
    SCRIPT_FILE: "`rightslice layout --write` planned",
    SHARING_FILE: f"name: {SHARING_CONFIG_MAP}",
    POLICY_FILE: POLICY_HEAD,
}
"""The files, and a text that is in each: nobody else's file of that name has it."""


def layout_files(changes: Sequence[NodeChange], max_unavailable: int, policies: Sequence[Json] = ()) -> dict[str, str]:
    """Return the text of each file by name; none if nothing changes.

    Args:
        max_unavailable: Nodes that change at the same time.
        policies: The policies to apply after that.
    """
    files: dict[str, str] = {}
    if any(_mig_step(each) != UNCHANGED for each in changes):
        files[CONFIG_MAP_FILE] = _mig_config_map(changes)
    if any(map(_shares_change, changes)):
        files[SHARING_FILE] = _sharing_config_map(changes)
    if changes:
        files[SCRIPT_FILE] = _script_text(changes, max_unavailable, files)
    if policies:
        files[POLICY_FILE] = POLICY_HEAD + "---\n".join(map(yaml_text, policies))
    return files


class PlannedNode(NamedTuple):
    """The configurations that a written script gives to one node.

    Attributes:
        config: The configuration of mig-parted that it gets; `UNCHANGED` if it keeps its own.
        sharing: The configuration of the device plugin; `UNCHANGED` if it keeps its own.
        shares: The shares that it advertises then.
    """

    config: str
    sharing: str = UNCHANGED
    shares: str = UNCHANGED


def planned_nodes(script: str) -> dict[str, PlannedNode]:
    """Return what a written script does with each node; empty for other text."""
    steps = (split(line) for line in script.splitlines() if line.startswith("finish "))
    return {step[1]: PlannedNode(*step[2:]) for step in steps if len(step) == len(PlannedNode._fields) + 2}


def config_name(layouts: Sequence[MigLayout]) -> str:
    """Return the name of the configuration of a node, which fits into a label.

    >>> config_name([(), ()]), config_name([(("1g.10gb", 7),), ()])
    ('all-disabled', 'rightslice-c5a70d214a')
    """
    entries = mig_config(layouts)
    if all(layout == WHOLE_CARD for layout in _without_shares(layouts)):
        return ALL_WHOLE
    return f"rightslice-{sha256(json_text(entries).encode()).hexdigest()[:10]}"


def mig_config(layouts: Sequence[MigLayout]) -> list[Json]:
    """Return mig-parted's configuration of a node: partitioned cards first, by their index."""
    counts, entries, index = Counter(_without_shares(layouts)), list[Json](), 0
    if set(counts) <= {WHOLE_CARD}:
        return [{"devices": "all", "mig-enabled": False}]
    for layout, cards in sorted(counts.items(), reverse=True):
        devices = list(range(index, index + cards))
        index += cards
        partitioned = layout != WHOLE_CARD
        entries.append({"devices": devices, "mig-enabled": partitioned, "mig-devices": dict(layout)})
    return entries


def _without_shares(layouts: Sequence[MigLayout]) -> list[MigLayout]:
    """Return the MIG layouts: shared cards are not partitioned."""
    return [WHOLE_CARD if is_shared(layout) else layout for layout in layouts]


def sharing_name(layouts: Sequence[MigLayout]) -> str:
    """Return the name of the device plugin's configuration of a node.

    >>> sharing_name([(("mps/4", 4),), (("1g.10gb", 7),)]), sharing_name([()])
    ('mps-4', 'not-shared')
    """
    share = _share(layouts)
    return f"{SHARING_WORDS[share[0]]}-{share[1]}" if share else NOT_SHARED


def sharing_config(layouts: Sequence[MigLayout]) -> Json:
    """Return the device plugin's configuration of a node: its cards that are not partitioned are shared equally."""
    share = _share(layouts)
    if not share:
        return {"version": "v1"}
    resources = [{"name": WHOLE_GPU, "replicas": share[1]}]
    rules = {"renameByDefault": True, "failRequestsGreaterThanOne": True, "resources": resources}
    return {"version": "v1", "sharing": {SHARING_FIELDS[share[0]]: rules}}


def _share(layouts: Sequence[MigLayout]) -> tuple[GpuForm, int] | None:
    return next((share for layout in layouts for profile, _ in layout if (share := share_of(profile))), None)


def _mig_config_map(changes: Sequence[NodeChange]) -> str:
    configs = {ALL_WHOLE: mig_config([])} | {config_name(each.layouts): mig_config(each.layouts) for each in changes}
    spec = {"version": "v1", "mig-configs": dict(sorted(configs.items()))}
    return _config_map(CONFIG_MAP, {"config.yaml": spec})


def _sharing_config_map(changes: Sequence[NodeChange]) -> str:
    configs = {sharing_name(each.layouts): sharing_config(each.layouts) for each in changes}
    return _config_map(SHARING_CONFIG_MAP, dict(sorted(configs.items())))


def _config_map(name: str, files: Json) -> str:
    metadata = {"name": name, "namespace": OPERATOR_NAMESPACE}
    text = yaml_text({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}) + "data:\n"
    for file, data in files.items():
        text += f"  {file}: |\n" + "".join(f"    {line}\n" for line in yaml_text(data).splitlines())
    return text


def _script_text(changes: Sequence[NodeChange], max_unavailable: int, files: Container[str]) -> str:
    ordered = sorted(changes, key=lambda change: change.node.pods)
    batches = (ordered[first : first + max_unavailable] for first in range(0, len(ordered), max_unavailable))
    names = {
        "FILE": CONFIG_MAP_FILE if CONFIG_MAP_FILE in files else "",
        "CONFIG_MAP": CONFIG_MAP,
        "SHARING_FILE": SHARING_FILE if SHARING_FILE in files else "",
        "SHARING_CONFIG_MAP": SHARING_CONFIG_MAP,
        "NAMESPACE": f"${{NAMESPACE:-{OPERATOR_NAMESPACE}}}",
    }
    settings = "".join(f"{name}={value}\n" for name, value in names.items())
    steps = "".join(f"{line}\n" for batch in batches for line in _batch_lines(batch))
    return SCRIPT_HEAD + settings + SCRIPT_BODY + steps


def _batch_lines(batch: Sequence[NodeChange]) -> Iterator[str]:
    """Yield the commands for nodes that change at the same time."""
    yield ""
    for change in batch:
        yield f"# {sanitize(change.node.node)}: {node_layouts_text(change.layouts)}"
        wanted = " ".join((_mig_step(change), *_sharing_steps(change)))
        yield f"{'drain' if change.node.pods else 'reserve'} {quote(change.node.node)} {wanted}"
    yield from (
        f"set_layout {quote(each.node.node)} {_mig_step(each)}" for each in batch if _mig_step(each) != UNCHANGED
    )
    for change in batch:
        sharing, shares = _sharing_steps(change)
        yield f"finish {quote(change.node.node)} {_mig_step(change)} {sharing} {shares}"


def _shares_change(change: NodeChange) -> bool:
    return Counter(filter(is_shared, change.layouts)) != Counter(filter(is_shared, change.node.layouts))


def _mig_step(change: NodeChange) -> str:
    """Return the MIG configuration that a node gets, or UNCHANGED."""
    same = Counter(_without_shares(change.layouts)) == Counter(_without_shares(change.node.layouts))
    return UNCHANGED if same else config_name(change.layouts)


def _sharing_steps(change: NodeChange) -> tuple[str, str]:
    """Return the configuration of the device plugin that a node gets, and its shares; or UNCHANGED."""
    shares = sum(count for layout in change.layouts if is_shared(layout) for _, count in layout)
    if not _shares_change(change):
        return UNCHANGED, UNCHANGED
    return sharing_name(change.layouts), str(shares)


SCRIPT_HEAD = r"""#!/bin/sh
# Applies the layouts that `rightslice layout --write` planned, a few nodes at a time. Needs kubectl and NVIDIA's GPU
# Operator. Stops at the first error. Run it again when that is solved: it skips nodes that are done, and retries those
# that failed. It uncordons only nodes that it cordoned.
set -eu
cd "$(dirname "$0")"

"""

SCRIPT_BODY = r"""DRAIN_FLAGS=${DRAIN_FLAGS:---ignore-daemonsets --timeout=30m}
SECONDS_TO_WAIT=${SECONDS_TO_WAIT:-1800}
MARK=rightslice.dev/cordoned-by # the annotation of nodes that this script cordoned
reserved=                       # nodes that this run cordoned and has not changed yet

fail() {
  echo "error: $*" >&2
  exit 1
}

undo() {
  for node in $reserved; do release "$node" || true; done
}
trap undo EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints the MIG configuration of a node, and its state.
layout_of() {
  kubectl get node "$1" -o \
    'jsonpath={.metadata.labels.nvidia\.com/mig\.config} {.metadata.labels.nvidia\.com/mig\.config\.state}'
}

# Returns whether the device plugin advertises a number of shares by a configuration.
has_shares() {
  found=$(kubectl get node "$1" -o \
    'jsonpath={.metadata.labels.nvidia\.com/device-plugin\.config} {.status.allocatable.nvidia\.com/gpu\.shared}')
  [ "$found" = "$2 $3" ] || [ "$found $3" = "$2  0" ]
}

# Returns whether a node has its layout, and its shares; - for what does not change.
is_done() {
  if [ "$2" != - ]; then [ "$(layout_of "$1")" = "$2 success" ] || return 1; fi
  if [ "$3" != - ]; then has_shares "$1" "$3" "$4" || return 1; fi
}

LIMITS='{.spec.containers[*].resources.limits} {.spec.initContainers[*].resources.limits}'
CLAIMS='{.spec.resourceClaims[*].resourceClaimName} {.status.resourceClaimStatuses[*].resourceClaimName}'
POD_LINES='{range .items[*]}{.metadata.namespace} {.metadata.name} '"$LIMITS | $CLAIMS"'{"\n"}{end}'
DRIVERS='{range .status.allocation.devices.results[*]}{.driver}={.adminAccess} {end}'

# Returns whether a ResourceClaim has a GPU, other than for administration.
has_gpu() {
  drivers=$(kubectl get resourceclaims -n "$1" "$2" --ignore-not-found -o "jsonpath=$DRIVERS") || exit 1
  case $drivers in *'nvidia.com= '*) return 0 ;; *) return 1 ;; esac
}

# Prints the pods on a node that request GPUs, or have them by a ResourceClaim.
gpu_pods() {
  lines=$(kubectl get pods --all-namespaces -o "jsonpath=$POD_LINES" \
    --field-selector "spec.nodeName=$1,status.phase!=Succeeded,status.phase!=Failed") || exit 1
  while read -r namespace pod line; do
    case ${line%%|*} in *nvidia.com/*) printf ' %s/%s' "$namespace" "$pod" && continue ;; esac
    for claim in ${line#*|}; do
      if has_gpu "$namespace" "$claim"; then printf ' %s/%s' "$namespace" "$pod" && break; fi
    done
  done <<EOF
$lines
EOF
}

# Prints whether a node is cordoned, and the mark of this script.
cordon_of() {
  kubectl get node "$1" -o 'jsonpath={.spec.unschedulable} {.metadata.annotations.rightslice\.dev/cordoned-by}'
}

# Keeps new pods off a node. One that somebody else cordoned stays cordoned, also afterwards.
cordon() {
  found=$(cordon_of "$1")
  case $found in
    'true layout')
      case " $reserved " in
        *" $1 "*) ;;
        *) echo "node/$1 was cordoned by an earlier run" ;;
      esac
      ;;
    true*) echo "node/$1 was cordoned before, and stays cordoned" ;;
    *)
      kubectl patch node "$1" -o name \
        -p "{\"metadata\":{\"annotations\":{\"$MARK\":\"layout\"}},\"spec\":{\"unschedulable\":true}}" >/dev/null
      reserved="$reserved $1"
      echo "node/$1 cordoned"
      ;;
  esac
}

# Admits new pods to a node again, if this script cordoned it.
release() {
  found=$(cordon_of "$1")
  [ "$found" = 'true layout' ] || return 0
  kubectl patch node "$1" -o name \
    -p "{\"metadata\":{\"annotations\":{\"$MARK\":null}},\"spec\":{\"unschedulable\":null}}" >/dev/null
  echo "node/$1 uncordoned"
}

# Keeps new pods off a node, and stops if pods with GPUs run there.
reserve() {
  is_done "$@" && return
  cordon "$1"
  pods=$(gpu_pods "$1")
  [ -z "$pods" ] || fail "a new layout of $1 would kill pods:$pods. Plan again, or let them end"
}

# Evicts the pods of a node, as their PodDisruptionBudgets allow.
drain() {
  is_done "$@" && return
  cordon "$1"
  # shellcheck disable=SC2086
  kubectl drain "$1" $DRAIN_FLAGS || fail "not all pods of $1 were evicted. Other flags: DRAIN_FLAGS='...' sh $0"
  reserve "$@"
}

# Leaves a node cordoned if this run fails from now on: it changes.
begin() {
  others=
  for node in $reserved; do [ "$node" = "$1" ] || others="$others $node"; done
  reserved=$others
}

# Requests a layout. The MIG manager works only if the label changes, so after a failure the label is removed first. The
# old result is removed too, since it would be mistaken for the new one.
set_layout() {
  found=$(layout_of "$1")
  begin "$1"
  case $found in
    "$2 failed") kubectl label node "$1" nvidia.com/mig.config- nvidia.com/mig.config.state- ;;
    "$2 "*) return 0 ;;
    *) kubectl label node "$1" nvidia.com/mig.config.state- ;;
  esac
  kubectl label node "$1" --overwrite "nvidia.com/mig.config=$2"
}

# Waits until a node has its layout, then its shares, and admits pods again.
finish() {
  waited=0
  while [ "$2" != - ]; do
    found=$(layout_of "$1") || found="$2 unknown"
    case $found in
      "$2 success") break ;;
      "$2 failed") fail "the MIG manager failed on $1, which stays cordoned. Its log: kubectl logs -n $NAMESPACE \
\$(kubectl get pods -n $NAMESPACE -l app=nvidia-mig-manager --field-selector spec.nodeName=$1 -o name). To retry, run \
this script again" ;;
      "$2 "*) pause "$1" "If its MIG manager does nothing: kubectl label node $1 nvidia.com/mig.config-" ;;
      *) fail "the label nvidia.com/mig.config of $1 was changed to '${found% *}'; $1 stays cordoned" ;;
    esac
  done
  begin "$1"
  if [ "$3" != - ] && ! has_shares "$1" "$3" "$4"; then
    kubectl label node "$1" --overwrite "nvidia.com/device-plugin.config=$3"
    until has_shares "$1" "$3" "$4"; do pause "$1" "Its device plugin must advertise $4 shares"; done
  fi
  release "$1"
}

pause() {
  [ "$waited" -lt "$SECONDS_TO_WAIT" ] ||
    fail "no result from $1 after $waited seconds; it stays cordoned. $2. Then run this script again"
  sleep 5
  waited=$((waited + 5))
}

has_config() {
  grep -Eq "^ +\"?$2\"?:" "$1"
}

# Copies a configuration of an earlier plan from the ConfigMap in the cluster to a file, if it is there.
keep_config() {
  if [ "$1" = "$FILE" ]; then
    kubectl get configmap -n "$NAMESPACE" "$CONFIG_MAP" --ignore-not-found -o 'jsonpath={.data.config\.yaml}' |
      awk -v head="  $2:" '/^  [^ -]/ { found = $0 == head } found { print "    " $0 }' >>"$1"
  else
    kubectl get configmap -n "$NAMESPACE" "$SHARING_CONFIG_MAP" --ignore-not-found -o "jsonpath={.data['$2']}" |
      awk -v head="  $2: |" 'NR == 1 { print head } { print "    " $0 }' >>"$1"
  fi
}

# Stops if a file lacks a configuration that nodes are labeled with, or that the GPU Operator gives to all others.
check_configs() {
  names='{range .items[*]}{.metadata.labels.nvidia\.com/'"$2"'}{"\n"}{end}'
  for config in $(kubectl get nodes -o "jsonpath=$names" | sort -u); do
    has_config "$1" "$config" || keep_config "$1" "$config"
    has_config "$1" "$config" ||
      fail "nodes have the label nvidia.com/$3=$config. Copy this configuration from your ConfigMap to $1"
  done
  default=$(kubectl get clusterpolicies.nvidia.com -o "jsonpath={.items[*].spec.$4.config.default}")
  [ -z "$default" ] || has_config "$1" "$default" ||
    fail "the GPU Operator has $4.config.default=$default. Copy this configuration from your ConfigMap to $1"
}

if [ -n "$FILE" ]; then
  check_configs "$FILE" 'mig\.config' mig.config migManager
  kubectl apply -n "$NAMESPACE" -f "$FILE"
  strategy='{.items[*].spec.mig.strategy} {.items[*].spec.migManager.config.name}'
  patch="{\"spec\":{\"mig\":{\"strategy\":\"mixed\"},\"migManager\":{\"config\":{\"name\":\"$CONFIG_MAP\"}}}}"
  [ "$(kubectl get clusterpolicies.nvidia.com -o "jsonpath=$strategy")" = "mixed $CONFIG_MAP" ] ||
    fail "the GPU Operator does not use $CONFIG_MAP with MIG strategy mixed. Run: kubectl patch \
clusterpolicies.nvidia.com cluster-policy --type merge -p '$patch'"
fi
if [ -n "$SHARING_FILE" ]; then
  check_configs "$SHARING_FILE" 'device-plugin\.config' device-plugin.config devicePlugin
  kubectl apply -n "$NAMESPACE" -f "$SHARING_FILE"
  patch="{\"spec\":{\"devicePlugin\":{\"config\":{\"name\":\"$SHARING_CONFIG_MAP\"}}}}"
  used='{.items[*].spec.devicePlugin.config.name}'
  [ "$(kubectl get clusterpolicies.nvidia.com -o "jsonpath=$used")" = "$SHARING_CONFIG_MAP" ] ||
    fail "the device plugin does not use $SHARING_CONFIG_MAP. Run: kubectl patch clusterpolicies.nvidia.com \
cluster-policy --type merge -p '$patch'"
fi
"""
