"""The result of `audit`: what every pod would become if it were created now, added up by namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from webhook.model.prices import NodePrices
from webhook.report.checks import Json, check_parts
from webhook.report.costs import prices_document
from webhook.report.figures import Figures, figures_document
from webhook.report.results import Checked, Verdict, summary_of
from webhook.report.words import Paint, Style, columns, count, gpus, plain, shown
from webhook.report.workload_tables import workload_document
from webhook.report.workloads import Workload

HEAD = ("NAMESPACE", "PODS", "GPUS", "AFTER", "SAVED", "ON TRIAL", "DENIED", "WARNED")


class Share(msgspec.Struct, frozen=True):
    """What the pods of one namespace come to. GPUs are thousandths.

    Attributes:
        gpu_milli_on_trial: What right-sizings on trial would free beside, were they enforced.
        trials: Pods that they would make smaller.
    """

    namespace: str
    pods: int
    gpu_milli_before: int
    gpu_milli_after: int
    gpu_milli_on_trial: int
    trials: int
    denied: int
    warned: int

    @property
    def saved(self) -> int:
        """Thousandths of a GPU that would be free."""
        return self.gpu_milli_before - self.gpu_milli_after


def shares(results: Iterable[Checked]) -> list[Share]:
    """Add up by namespace: the one that would save most first, trials included, then by name."""
    spaces: dict[str, list[Checked]] = {}
    for result in results:
        if result.verdict is not Verdict.SKIPPED:
            spaces.setdefault(result.namespace, []).append(result)
    return sorted((_share(name, members) for name, members in spaces.items()), key=_rank)


def _rank(share: Share) -> tuple[int, int, str]:
    return -share.saved - share.gpu_milli_on_trial, -share.saved, share.namespace


def _share(namespace: str, members: list[Checked]) -> Share:
    summary = summary_of(members)
    return Share(
        namespace=namespace,
        pods=len(members),
        gpu_milli_before=summary.gpu_milli_before,
        gpu_milli_after=summary.gpu_milli_after,
        gpu_milli_on_trial=sum(member.gpu_milli_on_trial for member in members),
        trials=sum(member.gpu_milli_on_trial > 0 for member in members),
        denied=summary.counts[Verdict.DENIED],
        warned=summary.counts[Verdict.WARNED],
    )


def total(every: Iterable[Share]) -> Share:
    """All namespaces together, under the name "*"."""
    rows = list(every)
    return Share(
        namespace="*",
        pods=sum(row.pods for row in rows),
        gpu_milli_before=sum(row.gpu_milli_before for row in rows),
        gpu_milli_after=sum(row.gpu_milli_after for row in rows),
        gpu_milli_on_trial=sum(row.gpu_milli_on_trial for row in rows),
        trials=sum(row.trials for row in rows),
        denied=sum(row.denied for row in rows),
        warned=sum(row.warned for row in rows),
    )


def by_namespace(results: Iterable[Checked], paint: Paint = plain) -> Iterator[str]:
    """The table: the total first, then a row a namespace."""
    every = shares(results)
    head, *rows = columns([HEAD, *map(_row, [total(every), *every])])
    yield paint(head, Style.STRONG)
    yield from rows


def _row(share: Share) -> tuple[str, ...]:
    milli = (share.gpu_milli_before, share.gpu_milli_after, share.saved, share.gpu_milli_on_trial)
    return (
        shown(share.namespace),
        str(share.pods),
        *map(gpus, milli),
        str(share.denied),
        str(share.warned),
    )


def audit_line(results: Iterable[Checked]) -> str:
    """The totals in one sentence."""
    every = total(shares(results))
    return (
        f"{count(every.pods, 'pod')}: GPUs asked {gpus(every.gpu_milli_before)}, after {gpus(every.gpu_milli_after)}, "
        f"saved {gpus(every.saved)}; {every.denied} would be denied, {every.warned} warned."
    )


def trials_line(results: Iterable[Checked]) -> str:
    """What right-sizings on trial would save, and which findings name the pods; "" where there are none."""
    every = total(shares(results))
    if not every.trials:
        return ""
    pods = count(every.trials, "pod")
    return (
        f"With every right-sizing on trial enforced: saved {gpus(every.gpu_milli_on_trial)} more, on {pods}; "
        "GPU-R102 names each, -v shows every one."
    )


def audit_document(
    results: Iterable[Checked],
    rows: Iterable[Workload] = (),
    figures: Figures | None = None,
    prices: NodePrices | None = None,
) -> Json:
    """The same as plain data: what `check` writes, and the namespaces, the workloads, and the head figures."""
    return {
        name: list(part) if isinstance(part, Iterator) else part
        for name, part in audit_parts(list(results), rows, figures, prices).items()
    }


def audit_parts(
    results: Sequence[Checked], rows: Iterable[Workload], figures: Figures | None, prices: NodePrices | None = None
) -> Json:
    """The same, with iterators of the objects and the workloads: there may be a hundred thousand.

    Where there are no head figures, the prices that the workloads' money comes from stand by themselves.
    """
    alone = {"prices": prices_document(prices, ())} if prices is not None and figures is None else {}
    return check_parts(results) | {
        "namespaces": [_document(share) for share in shares(results)],
        "workloads": (workload_document(row) for row in rows if row.touches_gpus),
        **({"figures": figures_document(figures)} if figures is not None else {}),
        **alone,
    }


def _document(share: Share) -> dict[str, Any]:
    return {
        "namespace": share.namespace,
        "pods": share.pods,
        "gpuMilliBefore": share.gpu_milli_before,
        "gpuMilliAfter": share.gpu_milli_after,
        "gpuMilliSaved": share.saved,
        "gpuMilliTrialSaved": share.gpu_milli_on_trial,
        "denied": share.denied,
        "warned": share.warned,
    }
