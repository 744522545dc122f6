"""The files that apply planned MIG layouts: a ConfigMap for NVIDIA's MIG manager, a script that labels the nodes, and
the policies that right-size pods to the new slices.

Format of the configurations: mig-parted, `api/spec/v1/spec.go`. A configuration describes a whole node, so nodes with
the same layouts share one; its name is a digest of it, so it never changes its meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from shlex import quote, split

from webhook.placement.layout_plan import WHOLE_CARD
from webhook.placement.mig import MigLayout
from webhook.placement.node_layouts import NodeChange
from webhook.report.layout import node_layouts_text
from webhook.report.serialization import json_text, yaml_text
from webhook.well_known import Json

CONFIG_MAP_FILE, SCRIPT_FILE, POLICY_FILE = "mig-config.yaml", "apply.sh", "policies.yaml"
CONFIG_MAP = "rightslice-mig-config"
OPERATOR_NAMESPACE = "gpu-operator"
ALL_WHOLE = "all-disabled"
"""NVIDIA's name of the configuration without MIG, which the MIG manager uses for nodes without a label."""


POLICY_HEAD = """\
# The policies whose right-sizing the plan counts and that do not right-size yet: as they are, but with mode enforce for
# rightSizing, and for an injection of tolerations. Apply this file after the layouts; pods get the new slices when they
# are created. A policy that comes from a file or a repository has to be changed there.
"""


def layout_files(changes: Sequence[NodeChange], max_unavailable: int, policies: Sequence[Json] = ()) -> dict[str, str]:
    """Return the text of each file by name; none if nothing changes.

    Args:
        max_unavailable: Nodes that change at the same time.
        policies: The policies to apply after that.
    """
    files: dict[str, str] = {}
    if changes:
        files = {CONFIG_MAP_FILE: _config_map_text(changes), SCRIPT_FILE: _script_text(changes, max_unavailable)}
    if policies:
        files[POLICY_FILE] = POLICY_HEAD + "---\n".join(map(yaml_text, policies))
    return files


def planned_configs(script: str) -> dict[str, str]:
    """Return the configuration of each node that a written script sets; empty for other text."""
    steps = (line.split(" ") for line in script.splitlines() if line.startswith("set_layout "))
    return {unquoted: config for _, name, config in steps for unquoted in split(name)}


def config_name(layouts: Sequence[MigLayout]) -> str:
    """Return the name of the configuration of a node, which fits into a label.

    >>> config_name([(), ()]), config_name([(("1g.10gb", 7),), ()])
    ('all-disabled', 'rightslice-c5a70d214a')
    """
    entries = mig_config(layouts)
    if all(layout == WHOLE_CARD for layout in layouts):
        return ALL_WHOLE
    return f"rightslice-{sha256(json_text(entries).encode()).hexdigest()[:10]}"


def mig_config(layouts: Sequence[MigLayout]) -> list[Json]:
    """Return mig-parted's configuration of a node: partitioned cards first, by their index."""
    counts, entries, index = Counter(layouts), list[Json](), 0
    if set(counts) <= {WHOLE_CARD}:
        return [{"devices": "all", "mig-enabled": False}]
    for layout, cards in sorted(counts.items(), reverse=True):
        devices = list(range(index, index + cards))
        index += cards
        partitioned = layout != WHOLE_CARD
        entries.append({"devices": devices, "mig-enabled": partitioned, "mig-devices": dict(layout)})
    return entries


def _config_map_text(changes: Sequence[NodeChange]) -> str:
    configs = {ALL_WHOLE: mig_config([])} | {config_name(each.layouts): mig_config(each.layouts) for each in changes}
    spec = yaml_text({"version": "v1", "mig-configs": dict(sorted(configs.items()))})
    header = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": OPERATOR_NAMESPACE},
    }
    return yaml_text(header) + "data:\n  config.yaml: |\n" + "".join(f"    {line}\n" for line in spec.splitlines())


def _script_text(changes: Sequence[NodeChange], max_unavailable: int) -> str:
    ordered = sorted(changes, key=lambda change: (change.node.pods, change.node.node))
    batches = (ordered[first : first + max_unavailable] for first in range(0, len(ordered), max_unavailable))
    names = {"FILE": CONFIG_MAP_FILE, "CONFIG_MAP": CONFIG_MAP, "NAMESPACE": f"${{NAMESPACE:-{OPERATOR_NAMESPACE}}}"}
    settings = "".join(f"{name}={value}\n" for name, value in names.items())
    return (
        SCRIPT_HEAD + settings + SCRIPT_BODY + "".join(f"{line}\n" for batch in batches for line in _batch_lines(batch))
    )


def _batch_lines(batch: Sequence[NodeChange]) -> Iterator[str]:
    """Yield the commands for nodes that change at the same time."""
    yield ""
    for change in batch:
        yield f"# {change.node.node}: {node_layouts_text(change.layouts)}"
        yield f"{'drain' if change.node.pods else 'reserve'} {_node_and_config(change)}"
    yield from (f"set_layout {_node_and_config(change)}" for change in batch)
    yield from (f"finish {quote(change.node.node)}" for change in batch)


def _node_and_config(change: NodeChange) -> str:
    return f"{quote(change.node.node)} {config_name(change.layouts)}"


SCRIPT_HEAD = r"""#!/bin/sh
# Applies the MIG layouts that `rightslice layout --write` planned, a few nodes at a time. Needs kubectl and NVIDIA's
# GPU Operator. Stops at the first error; when that is solved, run it again: nodes that are done are skipped.
set -eu
cd "$(dirname "$0")"

"""

SCRIPT_BODY = r"""DRAIN_FLAGS=${DRAIN_FLAGS:---ignore-daemonsets --timeout=30m}
SECONDS_TO_WAIT=${SECONDS_TO_WAIT:-1800}

fail() {
  echo "error: $*" >&2
  exit 1
}

label_of() {
  kubectl get node "$1" -o "jsonpath={.metadata.labels.nvidia\.com/$2}"
}

has_layout() {
  [ "$(label_of "$1" 'mig\.config')" = "$2" ] && [ "$(label_of "$1" 'mig\.config\.state')" = success ]
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
    case ${line%%|*} in *nvidia.com/*) echo "$namespace/$pod" && continue ;; esac
    for claim in ${line#*|}; do
      if has_gpu "$namespace" "$claim"; then echo "$namespace/$pod" && break; fi
    done
  done <<EOF
$lines
EOF
}

# Keeps new pods off a node, and stops if pods with GPUs run there.
reserve() {
  has_layout "$1" "$2" && return
  kubectl cordon "$1"
  pods=$(gpu_pods "$1")
  [ -z "$pods" ] || fail "a new layout of $1 would kill pods: $pods. Run kubectl uncordon $1, and plan again"
}

# Evicts the pods of a node, as their PodDisruptionBudgets allow.
drain() {
  has_layout "$1" "$2" && return
  # shellcheck disable=SC2086
  kubectl drain "$1" $DRAIN_FLAGS
  reserve "$1" "$2"
}

# Requests a layout. The old result is removed first, since it would be mistaken for the new one.
set_layout() {
  [ "$(label_of "$1" 'mig\.config')" != "$2" ] || return 0
  kubectl label node "$1" nvidia.com/mig.config.state-
  kubectl label node "$1" --overwrite "nvidia.com/mig.config=$2"
}

# Waits until the MIG manager has changed a node, and admits pods again.
finish() {
  waited=0
  while state=$(label_of "$1" 'mig\.config\.state') && [ "$state" != success ]; do
    [ "$state" != failed ] || fail "the MIG manager of $1 failed; the node stays cordoned. See its log"
    [ "$waited" -lt "$SECONDS_TO_WAIT" ] || fail "no result from $1 after $waited seconds; the node stays cordoned"
    sleep 5
    waited=$((waited + 5))
  done
  kubectl uncordon "$1"
}

names='{range .items[*]}{.metadata.labels.nvidia\.com/mig\.config}{"\n"}{end}'
for config in $(kubectl get nodes -o "jsonpath=$names" | sort -u); do
  grep -Eq "^ +\"?$config\"?:" "$FILE" ||
    fail "nodes have the label nvidia.com/mig.config=$config. Copy this configuration from your ConfigMap to $FILE"
done
kubectl apply -n "$NAMESPACE" -f "$FILE"
strategy='{.items[*].spec.mig.strategy} {.items[*].spec.migManager.config.name}'
patch="{\"spec\":{\"mig\":{\"strategy\":\"mixed\"},\"migManager\":{\"config\":{\"name\":\"$CONFIG_MAP\"}}}}"
[ "$(kubectl get clusterpolicies.nvidia.com -o "jsonpath=$strategy")" = "mixed $CONFIG_MAP" ] ||
  fail "the GPU Operator does not use $CONFIG_MAP with MIG strategy mixed. Run: kubectl patch \
clusterpolicies.nvidia.com cluster-policy --type merge -p '$patch'"
"""
