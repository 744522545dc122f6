"""One row an object, as `kubectl get -o wide` shows things; and one name an object, as `-o name` does."""

from __future__ import annotations

from collections.abc import Iterable

from webhook.model.decisions import Fit
from webhook.report.results import Checked, Verdict
from webhook.report.words import columns, gpus, shown

HEAD = ("VERDICT", "KIND", "NAMESPACE", "NAME", "GPUS", "AFTER", "CODES", "PLACE", "WHY")


def wide(results: Iterable[Checked]) -> list[str]:
    """Every object with its verdict, its GPUs and its codes; "-" where there is nothing to say."""
    return columns([HEAD, *map(_row, results)])


def _row(result: Checked) -> tuple[str, ...]:
    decision = result.decision
    codes = ",".join(dict.fromkeys(found.finding.code for found in result.findings))
    judged = result.verdict is not Verdict.SKIPPED
    cells = (
        result.verdict.value,
        result.kind,
        result.namespace,
        result.name,
        gpus(decision.gpu_milli_before) if judged else "",
        gpus(decision.gpu_milli_after) if judged else "",
        codes,
        str(result.place),
        why(result),
    )
    return tuple(shown(cell) or "-" for cell in cells)


def why(result: Checked) -> str:
    """Why the object is left as it is, or what its GPUs became; "" for an object without GPUs."""
    if result.verdict is Verdict.SKIPPED:
        return result.reason
    outcome = result.decision.outcome
    if isinstance(outcome, Fit):
        return f"{'now' if result.decision.applied else 'could be'} {outcome.resource}"
    return str(outcome) if result.decision.touches_gpus else ""


def names(results: Iterable[Checked]) -> list[str]:
    """Kind and name of every object that was judged, in lower case, with the API group after a dot."""
    return [_name(result) for result in results if result.verdict is not Verdict.SKIPPED]


def _name(result: Checked) -> str:
    group, slash, _ = result.api_version.partition("/")
    kind = f"{result.kind.lower()}.{group}" if slash else result.kind.lower()
    return shown(f"{kind}/{result.name}")
