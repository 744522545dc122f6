"""One row an object, as `kubectl get -o wide` shows things; and one name an object, as `-o name` does."""

from __future__ import annotations

from collections.abc import Iterable

from webhook.model.decisions import Fit
from webhook.model.offers import Offer
from webhook.model.resources import WHOLE_GPU
from webhook.report.results import Checked, Verdict
from webhook.report.words import columns, gpus, shown

HEAD = ("VERDICT", "KIND", "NAMESPACE", "NAME", "GPUS", "AFTER", "CODES", "PLACE", "WHY")
MOST_KINDS = 2


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
        return f"{'now' if result.decision.applied else 'could be'} {named(outcome.resource, meant_by(outcome))}"
    return str(outcome) if result.decision.touches_gpus else ""


def named(resource: str, meant: str) -> str:
    """A resource, and what is meant by it where its name does not tell."""
    return f"{resource} ({meant})" if meant else resource


def meant_by(fit: Fit) -> str:
    """What is given as `nvidia.com/gpu`, which is a whole card elsewhere; "" where the name of the resource tells."""
    if fit.resource != WHOLE_GPU:
        return ""
    kinds = tuple(dict.fromkeys(map(_kind, fit.offers)))
    return ", ".join(kinds[:MOST_KINDS]) + (f" and {len(kinds) - MOST_KINDS} more" if len(kinds) > MOST_KINDS else "")


def _kind(offer: Offer) -> str:
    """The product, with the profile and the share where it does not say them.

    The label of an instance usually ends in its profile: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.
    """
    product = offer.product or "product not labelled"
    profile = f" {offer.profile}" if offer.profile and not offer.product.endswith(f"-{offer.profile}") else ""
    return f"{product}{profile}" + (f", 1 of {offer.replicas} shares" if offer.replicas > 1 else "")


def names(results: Iterable[Checked]) -> list[str]:
    """Kind and name of every object that was judged, in lower case, with the API group after a dot."""
    return [_name(result) for result in results if result.verdict is not Verdict.SKIPPED]


def _name(result: Checked) -> str:
    group, slash, _ = result.api_version.partition("/")
    kind = f"{result.kind.lower()}.{group}" if slash else result.kind.lower()
    return shown(f"{kind}/{result.name}")
