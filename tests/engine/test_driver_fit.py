"""check_driver: one requirement against one offer."""

from __future__ import annotations

import pytest

from tests.engine.test_cuda import GEFORCE, LABEL_ONLY, MIDDLE, OLD, SILENT, offer
from webhook.engine.cuda_requirements import (
    DriverFit,
    all_drivers_fit,
    check_driver,
    parse_requirement,
    toolkit_requirement,
)
from webhook.model.offers import GpuOffer

NO_LABEL = offer("NVIDIA-A100", (535, 104, 5))
UNNAMED = offer("", (535, 104, 5), (12, 2))
NO_ARCH = GpuOffer(**{name: getattr(MIDDLE, name) for name in MIDDLE.__struct_fields__} | {"compute_capability": None})

WRITTEN: dict[str, tuple[str, GpuOffer, DriverFit]] = {
    "at least, satisfied": ("driver>=535", MIDDLE, DriverFit.FITS),
    "at least, not satisfied": ("driver>=535.129", MIDDLE, DriverFit.COMPATIBLE),
    "more than": ("driver>535", MIDDLE, DriverFit.FITS),
    "at most": ("driver<=535.104.5", MIDDLE, DriverFit.FITS),
    "less than": ("driver<535", MIDDLE, DriverFit.COMPATIBLE),
    "equal": ("driver=535.104.5", MIDDLE, DriverFit.FITS),
    "equal, written twice": ("driver==535.104.05", MIDDLE, DriverFit.FITS),
    "unlike": ("driver!=535.104.5", MIDDLE, DriverFit.COMPATIBLE),
    "a missing part is 0": ("cuda=12.2.0", MIDDLE, DriverFit.FITS),
    "an upper bound on CUDA": ("cuda>=11.0,cuda<12", MIDDLE, DriverFit.COMPATIBLE),
    "the architecture": ("arch>=8.0", MIDDLE, DriverFit.FITS),
    "an older architecture": ("arch<8.0", MIDDLE, DriverFit.COMPATIBLE),
    "an architecture that the node has no label for": ("arch>=8.0", NO_ARCH, DriverFit.UNKNOWN),
    "a driver that the node has no label for": ("driver>=535", LABEL_ONLY, DriverFit.UNKNOWN),
    "a driver that the node has no label for, with a term that fails": (
        "driver>=535,cuda>=12.8",
        LABEL_ONLY,
        DriverFit.COMPATIBLE,
    ),
    "CUDA version by driver alone": ("cuda>=12.2", NO_LABEL, DriverFit.FITS),
    "CUDA version by a driver that is too old": ("cuda>=12.4", NO_LABEL, DriverFit.COMPATIBLE),
    "a CUDA version that no driver in the table implies": ("cuda<12.4", NO_LABEL, DriverFit.UNKNOWN),
    "a data-center brand": ("brand=tesla", MIDDLE, DriverFit.FITS),
    "another brand": ("brand=quadro", MIDDLE, DriverFit.COMPATIBLE),
    "any brand but one": ("brand!=geforce", MIDDLE, DriverFit.UNKNOWN),
    "the brand of an unnamed card": ("brand=tesla", UNNAMED, DriverFit.UNKNOWN),
    "the brand of a consumer card": ("brand=geforce", GEFORCE, DriverFit.UNKNOWN),
    "one alternative of three": ("cuda>=13 brand=quadro driver>=535", MIDDLE, DriverFit.FITS),
    "a node without labels": ("cuda>=11", SILENT, DriverFit.UNKNOWN),
}


@pytest.mark.parametrize(("text", "one", "want"), WRITTEN.values(), ids=WRITTEN)
def test_a_written_requirement(text: str, one: GpuOffer, want: DriverFit) -> None:
    need = parse_requirement(text)
    assert need is not None
    assert check_driver(need, one) is want


TOOLKITS: dict[str, tuple[tuple[int, ...], GpuOffer, DriverFit]] = {
    "older than the driver": ((12, 1), MIDDLE, DriverFit.FITS),
    "newer than the driver": ((12, 4), MIDDLE, DriverFit.COMPATIBLE),
    "of a newer major": ((13, 0), MIDDLE, DriverFit.BELOW),
    "not in the table, but covered by the label": ((11, 9), MIDDLE, DriverFit.FITS),
    "not in the table, and newer than the label": ((12, 7), MIDDLE, DriverFit.COMPATIBLE),
    "not in the table, and the driver is below the floor": ((12, 7), OLD, DriverFit.BELOW),
    "not in the table, and no label": ((12, 7), NO_LABEL, DriverFit.UNKNOWN),
    "of a major that is not in the table": ((14, 0), MIDDLE, DriverFit.BELOW),
    "of a major that is not in the table, and no label": ((14, 0), NO_LABEL, DriverFit.UNKNOWN),
}


@pytest.mark.parametrize(("toolkit", "one", "want"), TOOLKITS.values(), ids=TOOLKITS)
def test_a_toolkit(toolkit: tuple[int, ...], one: GpuOffer, want: DriverFit) -> None:
    need = toolkit_requirement(toolkit)
    assert check_driver(need, one) is want
    assert not all_drivers_fit(need, [one]) or want is DriverFit.FITS


def test_the_fast_path_reports_no_more_than_the_full_check() -> None:
    assert all_drivers_fit(toolkit_requirement((12, 1)), [MIDDLE, NO_LABEL])
    assert not all_drivers_fit(toolkit_requirement((12, 1)), [MIDDLE, SILENT])
    assert not all_drivers_fit(toolkit_requirement((12, 7)), [MIDDLE])
