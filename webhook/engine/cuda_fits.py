"""Does a CUDA requirement hold on an offer's nodes? Three answers and a shrug, since nodes say only so much."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from webhook.engine.cuda_drivers import Version, own_driver
from webhook.engine.cuda_needs import CudaRequirement, RequirementTerm
from webhook.model.offers import NodeHardware, GpuOffer


class DriverFit(Enum):
    """How a requirement and a driver go together.

    * FITS: the driver is as new as the toolkit, or a written alternative holds.
    * COMPATIBLE: it runs by minor-version compatibility; run-time compilation (PTX) and new calls may fail.
    * BELOW: the driver is below the family's floor: the first CUDA call fails.
    * UNKNOWN: the nodes do not say what would decide it.
    """

    FITS = "fits"
    COMPATIBLE = "compatible"
    BELOW = "below"
    UNKNOWN = "unknown"


_OTHER_BRANDS = ("geforce", "titan", "quadro", "rtx", "gtx")
_DATA_CENTER_BRANDS = frozenset({"tesla", "nvidia"})


def is_data_center_gpu(offer: GpuOffer | NodeHardware) -> bool:
    """Is the product one of those for which NVIDIA supports forward compatibility without further conditions?"""
    name = offer.product.lower()
    return bool(name) and not any(brand in name for brand in _OTHER_BRANDS)


def all_drivers_fit(need: CudaRequirement, offers: Sequence[GpuOffer]) -> bool:
    """Is every driver as new as the toolkit? The usual answer, given fast; False says nothing."""
    own = need.own_driver
    if not own or need.alternatives:
        return False
    for offer in offers:  # noqa: SIM110 -- a plain loop costs half of all(), and this is the admission path
        if offer.driver < own:
            return False
    return True


def check_driver(need: CudaRequirement, offer: GpuOffer | NodeHardware) -> DriverFit:
    """Hold one requirement against one offer, or one node of it."""
    driver, cuda = offer.driver, offer.cuda
    if not driver and not cuda:
        return DriverFit.UNKNOWN
    if not need.alternatives:
        return _check_toolkit(need, driver, cuda)
    answers = [_all_terms_hold(terms, offer) for terms in need.alternatives]
    if True in answers:
        return DriverFit.FITS
    if not need.toolkit:
        return DriverFit.UNKNOWN if None in answers else DriverFit.COMPATIBLE
    below = _check_toolkit(need, driver, cuda) is DriverFit.BELOW
    return DriverFit.BELOW if below and None not in answers else DriverFit.COMPATIBLE


def _check_toolkit(need: CudaRequirement, driver: Version, cuda: Version) -> DriverFit:
    """By the driver where its number says it; else by the newest CUDA that the node's driver names."""
    if driver and need.own_driver:
        if driver >= need.own_driver:
            return DriverFit.FITS
        return DriverFit.BELOW if driver < need.floor_driver else DriverFit.COMPATIBLE
    if cuda and cuda >= need.toolkit[:2]:
        return DriverFit.FITS
    if driver and need.floor_driver and driver < need.floor_driver:
        return DriverFit.BELOW
    if not cuda:
        return DriverFit.UNKNOWN
    above_floor = driver and need.floor_driver
    return DriverFit.COMPATIBLE if above_floor or cuda[0] >= need.toolkit[0] else DriverFit.BELOW


def _all_terms_hold(terms: tuple[RequirementTerm, ...], offer: GpuOffer | NodeHardware) -> bool | None:
    """True, False, or None where a term cannot be told and no other is false."""
    answers = [_term_holds(term, offer) for term in terms]
    if False in answers:
        return False
    return None if None in answers else True


def _term_holds(term: RequirementTerm, offer: GpuOffer | NodeHardware) -> bool | None:
    if term.name == "brand":
        return _brand_holds(term, offer)
    if term.name == "driver":
        return _compare_version(offer.driver, term) if offer.driver else None
    if term.name == "arch":
        return _compare_version(offer.compute_capability, term) if offer.compute_capability else None
    if offer.cuda:
        return _compare_version(offer.cuda, term)
    own = own_driver(term.version)
    return offer.driver >= own if own and term.comparison == ">=" else None


def _brand_holds(term: RequirementTerm, offer: GpuOffer | NodeHardware) -> bool | None:
    """What NVML calls a card is not on the node; its product name tells data-center cards from others."""
    if not is_data_center_gpu(offer) or term.comparison not in ("=", "=="):
        return None
    return term.word in _DATA_CENTER_BRANDS


def _compare_version(number: Version, term: RequirementTerm) -> bool:
    left, right = _pad_version(number), _pad_version(term.version)
    match term.comparison:
        case ">=":
            return left >= right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case "<":
            return left < right
        case "!=":
            return left != right
    return left == right


def _pad_version(number: Version) -> Version:
    return (*number, 0, 0)[:3]
