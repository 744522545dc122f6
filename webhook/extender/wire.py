"""JSON between kube-scheduler and an extender: Go structs without tags, so the field names are the Go names.

Source: `k8s.io/kube-scheduler/extender/v1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.errors import ReviewError, quote_text
from webhook.model.pod_resources import negative_resources
from webhook.model.pods import Pod, without_nulls

NODE_NAMES_REQUIRED = "NodeNames must be set: write nodeCacheCapable: true in the scheduler's configuration"


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """Body of /filter and /prioritize."""

    pod: Pod
    node_names: tuple[str, ...] | None = None


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node."""

    pods: tuple[MetaPod, ...] = msgspec.field(name="Pods", default=())
    disruptions: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """Body of /preempt."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


def decode_extender_args(body: bytes) -> ExtenderArgs:
    """Read the body of /filter or /prioritize.

    Raises:
        ReviewError: it is invalid, has whole nodes instead of names, or a pod that no API server admits.
    """
    args: ExtenderArgs = _decode_body(body, ExtenderArgs)
    _reject_negative_amounts(args.pod)
    if args.node_names is None:
        raise ReviewError(NODE_NAMES_REQUIRED)
    return args


def decode_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """Read the body of /preempt.

    Raises:
        ReviewError: it is invalid, has whole pods instead of uids, or a pod that no API server admits.
    """
    args: ExtenderPreemptionArgs = _decode_body(body, ExtenderPreemptionArgs)
    _reject_negative_amounts(args.pod)
    if args.victims is None:
        raise ReviewError(NODE_NAMES_REQUIRED.replace("NodeNames", "NodeNameToMetaVictims"))
    return args


def _reject_negative_amounts(pod: Pod) -> None:
    for name in negative_resources(pod):
        raise ReviewError(f"{quote_text(name)} must not be negative")


def _decode_body(body: bytes, kind: type[Any]) -> Any:
    """Decode directly first. Go writes null for an empty value, so a failure is retried with nulls removed."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        pass
    except RecursionError as error:
        raise ReviewError("the body must not be nested this deeply") from error
    try:
        return msgspec.convert(without_nulls(msgspec.json.decode(body)), kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ReviewError("the body must be what kube-scheduler sends to an extender") from error


def encode_filter_result(passed: Sequence[str], failed: Mapping[str, str], unresolvable: Mapping[str, str]) -> bytes:
    """Return the answer of /filter.

    Args:
        passed: Names of the nodes that are left.
        failed: Reasons for others, where eviction may help.
        unresolvable: Reasons where it cannot.
    """
    answer = {"NodeNames": passed, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}
    return msgspec.json.encode(answer)


def encode_host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Return the answer of /prioritize: a score of 0 to 10 for each node."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def encode_preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    """Return the answer of /preempt: the nodes where evicting the victims helps."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})
