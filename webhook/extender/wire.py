"""What kube-scheduler sends and takes: Go structs without tags, so fields are called exactly as they are there.

Source: `k8s.io/kube-scheduler/extender/v1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.errors import ReviewError, quote_text
from webhook.model.pod_resources import negative_resources
from webhook.model.pods import Pod, without_nulls

NODE_NAMES_REQUIRED = "NodeNames must be there: write nodeCacheCapable: true in the scheduler's configuration"


class ExtenderArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of /filter and /prioritize."""

    pod: Pod
    node_names: tuple[str, ...] | None = None


class MetaPod(msgspec.Struct, frozen=True):
    """A pod that would be evicted."""

    uid: str = msgspec.field(name="UID", default="")


class MetaVictims(msgspec.Struct, frozen=True):
    """The pods of one node that would be."""

    pods: tuple[MetaPod, ...] = msgspec.field(name="Pods", default=())
    disruptions: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """The body of /preempt."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


def decode_extender_args(body: bytes) -> ExtenderArgs:
    """Read the body of /filter or /prioritize.

    Raises:
        ReviewError: it is none, has whole nodes and not their names, or a pod that no API server lets in.
    """
    asked: ExtenderArgs = _decode_body(body, ExtenderArgs)
    _reject_negative_amounts(asked.pod)
    if asked.node_names is None:
        raise ReviewError(NODE_NAMES_REQUIRED)
    return asked


def decode_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """Read the body of /preempt.

    Raises:
        ReviewError: it is none, has whole pods and not their uids, or a pod that no API server lets in.
    """
    asked: ExtenderPreemptionArgs = _decode_body(body, ExtenderPreemptionArgs)
    _reject_negative_amounts(asked.pod)
    if asked.victims is None:
        raise ReviewError(NODE_NAMES_REQUIRED.replace("NodeNames", "NodeNameToMetaVictims"))
    return asked


def _reject_negative_amounts(pod: Pod) -> None:
    for name in negative_resources(pod):
        raise ReviewError(f"{quote_text(name)} must not be asked for below zero")


def _decode_body(body: bytes, kind: type[Any]) -> Any:
    """The fast way first; Go writes null for what is empty, and that is read again as absent."""
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


def encode_filter_result(passed: Sequence[str], failed: Mapping[str, str], hopeless: Mapping[str, str]) -> bytes:
    """The answer of /filter.

    Args:
        passed: Names of the nodes that are left.
        failed: Why others are not; who is evicted there may help.
        hopeless: The same where nothing helps.
    """
    answer = {"NodeNames": passed, "FailedNodes": failed, "FailedAndUnresolvableNodes": hopeless, "Error": ""}
    return msgspec.json.encode(answer)


def encode_host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """The answer of /prioritize: a score of 0 to 10 for each node."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def encode_preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    """The answer of /preempt: the nodes on which evicting helps, with who is evicted."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})
