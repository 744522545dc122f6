"""fit: one requirement against one offer."""

from __future__ import annotations

import pytest

from tests.engine.test_cuda import GEFORCE, LABEL_ONLY, MIDDLE, OLD, SILENT, offer
from webhook.engine.cuda_fits import Fit, fit, plainly_fits
from webhook.engine.cuda_needs import at_least, requirement
from webhook.model.offers import Offer

NO_LABEL = offer("NVIDIA-A100", (535, 104, 5))
UNNAMED = offer("", (535, 104, 5), (12, 2))
NO_ARCH = Offer(**{name: getattr(MIDDLE, name) for name in MIDDLE.__struct_fields__} | {"compute_capability": None})

WRITTEN: dict[str, tuple[str, Offer, Fit]] = {
    "at least, and it is": ("driver>=535", MIDDLE, Fit.FITS),
    "at least, and it is not": ("driver>=535.129", MIDDLE, Fit.COMPATIBLE),
    "more than": ("driver>535", MIDDLE, Fit.FITS),
    "at most": ("driver<=535.104.5", MIDDLE, Fit.FITS),
    "less than": ("driver<535", MIDDLE, Fit.COMPATIBLE),
    "equal": ("driver=535.104.5", MIDDLE, Fit.FITS),
    "equal, written twice": ("driver==535.104.05", MIDDLE, Fit.FITS),
    "unlike": ("driver!=535.104.5", MIDDLE, Fit.COMPATIBLE),
    "a missing part is 0": ("cuda=12.2.0", MIDDLE, Fit.FITS),
    "an upper bound on CUDA": ("cuda>=11.0,cuda<12", MIDDLE, Fit.COMPATIBLE),
    "the architecture": ("arch>=8.0", MIDDLE, Fit.FITS),
    "an older architecture": ("arch<8.0", MIDDLE, Fit.COMPATIBLE),
    "an architecture that the node does not name": ("arch>=8.0", NO_ARCH, Fit.UNKNOWN),
    "a driver that the node does not name": ("driver>=535", LABEL_ONLY, Fit.UNKNOWN),
    "a driver that the node does not name, beside what fails": ("driver>=535,cuda>=12.8", LABEL_ONLY, Fit.COMPATIBLE),
    "CUDA told by the driver alone": ("cuda>=12.2", NO_LABEL, Fit.FITS),
    "CUDA told by a driver that is too old": ("cuda>=12.4", NO_LABEL, Fit.COMPATIBLE),
    "a CUDA that no driver tells": ("cuda<12.4", NO_LABEL, Fit.UNKNOWN),
    "a data-center brand": ("brand=tesla", MIDDLE, Fit.FITS),
    "another brand": ("brand=quadro", MIDDLE, Fit.COMPATIBLE),
    "any brand but one": ("brand!=geforce", MIDDLE, Fit.UNKNOWN),
    "the brand of a card that is not named": ("brand=tesla", UNNAMED, Fit.UNKNOWN),
    "the brand of a consumer card": ("brand=geforce", GEFORCE, Fit.UNKNOWN),
    "one alternative of three": ("cuda>=13 brand=quadro driver>=535", MIDDLE, Fit.FITS),
    "a node that says nothing": ("cuda>=11", SILENT, Fit.UNKNOWN),
}


@pytest.mark.parametrize(("text", "one", "want"), WRITTEN.values(), ids=WRITTEN)
def test_a_written_requirement(text: str, one: Offer, want: Fit) -> None:
    need = requirement(text)
    assert need is not None
    assert fit(need, one) is want


TOOLKITS: dict[str, tuple[tuple[int, ...], Offer, Fit]] = {
    "older than the driver": ((12, 1), MIDDLE, Fit.FITS),
    "newer than the driver": ((12, 4), MIDDLE, Fit.COMPATIBLE),
    "of a newer major": ((13, 0), MIDDLE, Fit.BELOW),
    "not in the table, but the label knows it": ((11, 9), MIDDLE, Fit.FITS),
    "not in the table, and newer than the label": ((12, 7), MIDDLE, Fit.COMPATIBLE),
    "not in the table, and the driver is below the floor": ((12, 7), OLD, Fit.BELOW),
    "not in the table, and no label": ((12, 7), NO_LABEL, Fit.UNKNOWN),
    "of a major that is not in the table": ((14, 0), MIDDLE, Fit.BELOW),
    "of a major that is not in the table, and no label": ((14, 0), NO_LABEL, Fit.UNKNOWN),
}


@pytest.mark.parametrize(("toolkit", "one", "want"), TOOLKITS.values(), ids=TOOLKITS)
def test_a_toolkit(toolkit: tuple[int, ...], one: Offer, want: Fit) -> None:
    need = at_least(toolkit)
    assert fit(need, one) is want
    assert not plainly_fits(need, [one]) or want is Fit.FITS


def test_the_short_way_never_says_more_than_the_long_one() -> None:
    assert plainly_fits(at_least((12, 1)), [MIDDLE, NO_LABEL])
    assert not plainly_fits(at_least((12, 1)), [MIDDLE, SILENT])
    assert not plainly_fits(at_least((12, 7)), [MIDDLE])
