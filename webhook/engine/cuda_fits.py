"""Does a CUDA requirement hold on an offer's nodes? Three answers and a shrug, since nodes say only so much."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from webhook.engine.cuda_drivers import Version, own_driver
from webhook.engine.cuda_needs import Requirement, Term
from webhook.model.offers import Hardware, Offer


class Fit(Enum):
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


def is_data_center(offer: Offer | Hardware) -> bool:
    """Is the product one of those for which NVIDIA supports forward compatibility without further conditions?"""
    name = offer.product.lower()
    return bool(name) and not any(brand in name for brand in _OTHER_BRANDS)


def plainly_fits(need: Requirement, offers: Sequence[Offer]) -> bool:
    """Is every driver as new as the toolkit? The usual answer, given fast; False says nothing."""
    own = need.own
    if not own or need.alternatives:
        return False
    for offer in offers:  # noqa: SIM110 -- a plain loop costs half of all(), and this is the admission path
        if offer.driver < own:
            return False
    return True


def fit(need: Requirement, offer: Offer | Hardware) -> Fit:
    """Hold one requirement against one offer, or one node of it."""
    driver, cuda = offer.driver, offer.cuda
    if not driver and not cuda:
        return Fit.UNKNOWN
    if not need.alternatives:
        return _by_toolkit(need, driver, cuda)
    answers = [_all_hold(terms, offer) for terms in need.alternatives]
    if True in answers:
        return Fit.FITS
    if not need.toolkit:
        return Fit.UNKNOWN if None in answers else Fit.COMPATIBLE
    below = _by_toolkit(need, driver, cuda) is Fit.BELOW
    return Fit.BELOW if below and None not in answers else Fit.COMPATIBLE


def _by_toolkit(need: Requirement, driver: Version, cuda: Version) -> Fit:
    """By the driver where its number says it; else by the newest CUDA that the node's driver names."""
    if driver and need.own:
        if driver >= need.own:
            return Fit.FITS
        return Fit.BELOW if driver < need.floor else Fit.COMPATIBLE
    if cuda and cuda >= need.toolkit[:2]:
        return Fit.FITS
    if driver and need.floor and driver < need.floor:
        return Fit.BELOW
    if not cuda:
        return Fit.UNKNOWN
    above_floor = driver and need.floor
    return Fit.COMPATIBLE if above_floor or cuda[0] >= need.toolkit[0] else Fit.BELOW


def _all_hold(terms: tuple[Term, ...], offer: Offer | Hardware) -> bool | None:
    """True, False, or None where a term cannot be told and no other is false."""
    answers = [_holds(term, offer) for term in terms]
    if False in answers:
        return False
    return None if None in answers else True


def _holds(term: Term, offer: Offer | Hardware) -> bool | None:
    if term.name == "brand":
        return _of_brand(term, offer)
    if term.name == "driver":
        return _compare(offer.driver, term) if offer.driver else None
    if term.name == "arch":
        return _compare(offer.compute_capability, term) if offer.compute_capability else None
    if offer.cuda:
        return _compare(offer.cuda, term)
    own = own_driver(term.version)
    return offer.driver >= own if own and term.comparison == ">=" else None


def _of_brand(term: Term, offer: Offer | Hardware) -> bool | None:
    """What NVML calls a card is not on the node; its product name tells data-center cards from others."""
    if not is_data_center(offer) or term.comparison not in ("=", "=="):
        return None
    return term.word in _DATA_CENTER_BRANDS


def _compare(number: Version, term: Term) -> bool:
    left, right = _padded(number), _padded(term.version)
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


def _padded(number: Version) -> Version:
    return (*number, 0, 0)[:3]
