"""What kube-scheduler sends and takes: Go structs without tags, so fields are called exactly as they are there.

Source: `k8s.io/kube-scheduler/extender/v1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.errors import ReviewError
from webhook.model.pods import Pod, without_nulls

NO_NAMES = "NodeNames must be there: write nodeCacheCapable: true in the scheduler's configuration"


class Asked(msgspec.Struct, frozen=True, rename="pascal"):
    """The body of /filter and /prioritize."""

    pod: Pod
    node_names: tuple[str, ...] | None = None


class Victim(msgspec.Struct, frozen=True):
    """A pod that would be evicted."""

    uid: str = msgspec.field(name="UID", default="")


class Victims(msgspec.Struct, frozen=True):
    """The pods of one node that would be."""

    pods: tuple[Victim, ...] = msgspec.field(name="Pods", default=())
    disruptions: int = msgspec.field(name="NumPDBViolations", default=0)


class Preempting(msgspec.Struct, frozen=True):
    """The body of /preempt."""

    pod: Pod = msgspec.field(name="Pod")
    victims: dict[str, Victims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


def read_asked(body: bytes) -> Asked:
    """Read the body of /filter or /prioritize.

    Raises:
        ReviewError: it is none, or has whole nodes and not their names.
    """
    asked: Asked = _read(body, Asked)
    if asked.node_names is None:
        raise ReviewError(NO_NAMES)
    return asked


def read_preempting(body: bytes) -> Preempting:
    """Read the body of /preempt.

    Raises:
        ReviewError: it is none, or has whole pods and not their uids.
    """
    asked: Preempting = _read(body, Preempting)
    if asked.victims is None:
        raise ReviewError(NO_NAMES.replace("NodeNames", "NodeNameToMetaVictims"))
    return asked


def _read(body: bytes, kind: type[Any]) -> Any:
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


def filter_answer(passed: Sequence[str], failed: Mapping[str, str], hopeless: Mapping[str, str]) -> bytes:
    """The answer of /filter.

    Args:
        passed: Names of the nodes that are left.
        failed: Why others are not; who is evicted there may help.
        hopeless: The same where nothing helps.
    """
    answer = {"NodeNames": passed, "FailedNodes": failed, "FailedAndUnresolvableNodes": hopeless, "Error": ""}
    return msgspec.json.encode(answer)


def prioritize_answer(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """The answer of /prioritize: a score of 0 to 10 for each node."""
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def preempt_answer(victims: Mapping[str, Victims]) -> bytes:
    """The answer of /preempt: the nodes on which evicting helps, with who is evicted."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})
