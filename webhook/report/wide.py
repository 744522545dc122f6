"""One row an object, as `kubectl get -o wide` shows things; and one name an object, as `-o name` does."""

from __future__ import annotations

from collections.abc import Iterable

from webhook.model.decisions import OfferChoice
from webhook.model.offers import GpuOffer
from webhook.model.resources import WHOLE_GPU
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.words import align_columns, format_gpus, sanitize

WIDE_HEADER = ("VERDICT", "KIND", "NAMESPACE", "NAME", "GPUS", "AFTER", "CODES", "PLACE", "WHY")
MAX_PRODUCTS = 2


def wide_table(results: Iterable[CheckResult]) -> list[str]:
    """Every object with its verdict, its GPUs and its codes; "-" where there is nothing to say."""
    return align_columns([WIDE_HEADER, *map(_wide_row, results)])


def _wide_row(result: CheckResult) -> tuple[str, ...]:
    decision = result.decision
    codes = ",".join(dict.fromkeys(found.finding.code for found in result.findings))
    judged = result.verdict is not CheckVerdict.SKIPPED
    cells = (
        result.verdict.value,
        result.kind,
        result.namespace,
        result.name,
        format_gpus(decision.gpu_milli_before) if judged else "",
        format_gpus(decision.gpu_milli_after) if judged else "",
        codes,
        str(result.place),
        result_reason(result),
    )
    return tuple(sanitize(cell) or "-" for cell in cells)


def result_reason(result: CheckResult) -> str:
    """Why the object is left as it is, or what its GPUs became; "" for an object without GPUs."""
    if result.verdict is CheckVerdict.SKIPPED:
        return result.reason
    outcome = result.decision.outcome
    if isinstance(outcome, OfferChoice):
        return f"{'now' if result.decision.applied else 'could be'} {resource_with_meaning(outcome.resource, resource_meaning(outcome))}"
    return str(outcome) if result.decision.involves_gpus else ""


def resource_with_meaning(resource: str, meant: str) -> str:
    """A resource, and what is meant by it where its name does not tell."""
    return f"{resource} ({meant})" if meant else resource


def resource_meaning(fit: OfferChoice) -> str:
    """What is given as `nvidia.com/gpu`, which is a whole card elsewhere; "" where the name of the resource tells."""
    if fit.resource != WHOLE_GPU:
        return ""
    kinds = tuple(dict.fromkeys(map(_offer_product, fit.offers)))
    return ", ".join(kinds[:MAX_PRODUCTS]) + (f" and {len(kinds) - MAX_PRODUCTS} more" if len(kinds) > MAX_PRODUCTS else "")


def _offer_product(offer: GpuOffer) -> str:
    """The product, with the profile and the share where it does not say them.

    The label of an instance usually ends in its profile: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.
    """
    product = offer.product or "product not labelled"
    profile = f" {offer.profile}" if offer.profile and not offer.product.endswith(f"-{offer.profile}") else ""
    return f"{product}{profile}" + (f", 1 of {offer.replicas} shares" if offer.replicas > 1 else "")


def object_names(results: Iterable[CheckResult]) -> list[str]:
    """Kind and name of every object that was judged, in lower case, with the API group after a dot."""
    return [_object_name(result) for result in results if result.verdict is not CheckVerdict.SKIPPED]


def _object_name(result: CheckResult) -> str:
    group, slash, _ = result.api_version.partition("/")
    kind = f"{result.kind.lower()}.{group}" if slash else result.kind.lower()
    return sanitize(f"{kind}/{result.name}")
