"""What a change of policies would do to the pods of a cluster: each judged by the old ones and by the new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from webhook.audit.auditing import audit_pod, holds, without_sizing
from webhook.audit.checking import World
from webhook.audit.manifests import Entry, Passed
from webhook.model.decisions import Decision, Operation
from webhook.model.paths import pointer
from webhook.model.records import DECISION
from webhook.policy.compiled import PolicySet
from webhook.report.comparisons import Compared
from webhook.report.results import Checked, Verdict, skipped

_RECORD = pointer((DECISION,))
"""How the path of our record ends, in a pod that has annotations."""


def compare_all(found: Iterable[Entry | Passed], world: World, changed: PolicySet) -> Iterator[Compared | Checked]:
    """Judge each pod twice.

    Args:
        world: With the old policies.
        changed: The new ones.

    Yields:
        What differs between the two, for each pod; a skipped result for each fault in a file.
    """
    after = msgspec.structs.replace(world, policies=changed)
    plain, plain_after = without_sizing(world.policies), without_sizing(changed)
    for each in found:
        if isinstance(each, Passed):
            if each.broken:
                yield skipped(each.place, each.reason, broken=True)
        elif holds(each.data):
            one, other = audit_pod(each, world, plain), audit_pod(each, after, plain_after)
            yield one if one.verdict is Verdict.SKIPPED else _compared(one, other)


def _compared(one: Checked, other: Checked) -> Compared:
    before, after = one.decision, other.decision
    refused = {found.code: found for found in after.denials}
    taken_back = {found.code: found for found in before.denials}
    reasons = refused if after.denials else taken_back
    return Compared(
        namespace=one.namespace,
        workload=other.standing.workload if other.standing is not None else "",
        denied=bool(after.denials) and not before.denials,
        allowed=bool(before.denials) and not after.denials,
        patched=not after.denials and _changes(one) != _changes(other),
        codes=tuple(reasons) if bool(before.denials) != bool(after.denials) else (),
        gpu_milli=before.gpu_milli_after - after.gpu_milli_after,
        warned=_new_warnings(before, after) if not after.denials else (),
    )


def _new_warnings(before: Decision, after: Decision) -> tuple[str, ...]:
    said = {found.code for found in before.warnings}
    return tuple(dict.fromkeys(found.code for found in after.warnings if found.code not in said))


def _changes(result: Checked) -> list[object]:
    """The operations without our own record: it has the digest of all policies, and differs whatever they say."""
    return [_without_record(operation) for operation in result.decision.patch]


def _without_record(operation: Operation) -> object:
    value = operation["value"]
    if operation["path"].endswith(_RECORD):
        return None
    if isinstance(value, dict) and DECISION in value:
        value = {key: each for key, each in value.items() if key != DECISION}
    return operation["op"], operation["path"], value
