"""Hold the CUDA that a pod's images need against the drivers and architectures of the nodes it may land on.

Where the container runtime injects devices by CDI, as it now does by default, nobody evaluates an image's
requirement: the program starts and fails at its first CUDA call. So it is said here.

What an image needs comes, in this order, from the pod's annotation, NVIDIA_REQUIRE_CUDA and CUDA_VERSION in
its environment, and the image's tag. Rules: NVIDIA's CUDA compatibility guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from webhook.engine.cuda_drivers import driver_written, without_kernels, written
from webhook.engine.cuda_fits import Fit, fit, is_data_center, plainly_fits
from webhook.engine.cuda_needs import Requirement, at_least, declared, requirement, tagged, version
from webhook.engine.remarks import Remark
from webhook.errors import quoted, shorten
from webhook.model.modes import Mode
from webhook.model.offers import Offer
from webhook.model.paths import Path
from webhook.model.pods import Container, EnvVar, Pod
from webhook.model.records import CUDA, CUDA_COMPAT

_REQUIRE = "NVIDIA_REQUIRE_"
_TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_MOST_NAMES = 4
_NEWER_NODES = "Use an image with an older CUDA, or nodes with a newer driver."


class _Need(msgspec.Struct, frozen=True):
    """One requirement, where it stands, and whether the image brings the compatibility package.

    Attributes:
        source: What says so, for messages.
        words: The text as it was written.
        wanted: None if the text cannot be read.
    """

    path: Path
    source: str
    words: str
    wanted: Requirement | None
    compat: bool


def driver_remarks(pod: Pod, offers: Sequence[Offer], asking: Mapping[Path, Container]) -> list[Remark]:
    """What speaks against running the pod's images on the offers' nodes.

    Args:
        pod: The pod.
        offers: What its GPU containers may land on; offers without driver and CUDA version say nothing.
        asking: The containers that ask for GPUs, by their paths; only they count.
    """
    return [remark for need in _needs(pod, asking) for remark in _judge(need, offers)]


def _judge(need: _Need, offers: Sequence[Offer]) -> list[Remark]:
    if need.wanted is None:
        must = "must be a requirement such as cuda>=12.4, with a comma for and, a space for or"
        message = f"{need.source} {must}, found {quoted(need.words)}"
        return [Remark("GPU-C104", need.path, message, "Write >=12.4, for example.", Mode.WARN)]
    wanted = need.wanted
    results = _drivers(need, wanted, offers)
    return results + _architectures(need, wanted, offers) if wanted.toolkit else results


def _drivers(need: _Need, wanted: Requirement, offers: Sequence[Offer]) -> list[Remark]:
    if plainly_fits(wanted, offers):
        return []
    fits = [(offer, fit(wanted, offer)) for offer in offers]
    able = [offer for offer, how in fits if how is Fit.COMPATIBLE]
    below = [offer for offer, how in fits if how is Fit.BELOW]
    if not able and not below:
        return []
    good = [offer for offer, how in fits if how is Fit.FITS]
    if good:
        return [_on_some(need, good, able + below)]
    if able:
        return [_older(need, wanted, able, below)]
    return [_too_old(need, wanted, below, every=len(below) == len(fits))]


def _too_old(need: _Need, wanted: Requirement, below: Sequence[Offer], *, every: bool) -> Remark:
    """Below the family's floor; sure unless some node does not say, or forward compatibility may help."""
    sure = every and not (need.compat and all(map(is_data_center, below)))
    least = driver_written(wanted.floor) if wanted.floor else f"one with CUDA {wanted.toolkit[0]}"
    message = (
        f"{_asks(need, wanted)}, so the driver must be {least} or newer, found {_newest(below)} on {_names(below)}"
    )
    return Remark("GPU-C101", need.path, message, _NEWER_NODES, Mode.ENFORCE if sure else Mode.WARN)


def _older(need: _Need, wanted: Requirement, able: Sequence[Offer], below: Sequence[Offer]) -> Remark:
    """No node fits; some run it by minor-version compatibility."""
    should = f"should be {driver_written(wanted.own)} or newer" if wanted.own else "should satisfy that"
    rest = f", and too old a one on {_names(below)}" if below else ""
    message = f"{_asks(need, wanted)}, so the driver {should}, found {_newest(able)} on {_names(able)}{rest}"
    return Remark("GPU-C102", need.path, message, "Test it there, or use an image with an older CUDA.", Mode.WARN)


def _on_some(need: _Need, good: Sequence[Offer], bad: Sequence[Offer]) -> Remark:
    message = (
        f"the driver should fit {need.source} on every node this pod may land on, found one that does on "
        f"{_names(good)} only, and {_newest(bad)} on {_names(bad)}"
    )
    fix = f"Select one of these in a node affinity on nvidia.com/gpu.product: {_names(good)}."
    return Remark("GPU-C102", need.path, message, fix, Mode.WARN)


def _architectures(need: _Need, wanted: Requirement, offers: Sequence[Offer]) -> list[Remark]:
    reasons: dict[str, list[Offer]] = {}
    for offer in offers:
        reason = without_kernels(wanted.toolkit, offer.compute_capability)
        if not reason:
            return []
        reasons.setdefault(reason, []).append(offer)
    fix = "Use an image built with a toolkit that knows this GPU, or ask for another product."
    return [
        Remark(
            "GPU-C103",
            need.path,
            f"{_asks(need, wanted)}, but a GPU this pod may land on {reason}, found {_names(such)}",
            fix,
            Mode.WARN,
        )
        for reason, such in reasons.items()
    ]


def _asks(need: _Need, wanted: Requirement) -> str:
    asked = f"CUDA {written(wanted.toolkit)}" if wanted.toolkit else quoted(need.words)
    return f"{need.source} asks for {asked}"


def _newest(offers: Sequence[Offer]) -> str:
    drivers = [offer.driver for offer in offers if offer.driver]
    if drivers:
        return f"driver {driver_written(max(drivers))}"
    return f"CUDA {written(max((offer.cuda for offer in offers), default=()))}"


def _names(offers: Sequence[Offer]) -> str:
    names = sorted({offer.product or offer.resource for offer in offers})
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shorten(name) for name in names[:_MOST_NAMES]) + more


def _needs(pod: Pod, containers: Mapping[Path, Container]) -> list[_Need]:
    annotations = pod.metadata.annotations
    compat = annotations.get(CUDA_COMPAT) == "true"
    text = annotations.get(CUDA)
    if text is None:
        return [need for path, one in containers.items() for need in _of_container(path, one, compat=compat)]
    compat = compat or any(variable.name == _COMPAT for one in containers.values() for variable in one.env)
    return [_Need(("metadata", "annotations", CUDA), CUDA, text, declared(text), compat)]


_COMPAT = "NV_CUDA_COMPAT_PACKAGE"
_OURS = frozenset({_COMPAT, "NVIDIA_DISABLE_REQUIRE", "CUDA_VERSION"})


def _of_container(path: Path, container: Container, *, compat: bool) -> list[_Need]:
    """A container's own needs: every NVIDIA_REQUIRE_ variable counts, else the toolkit's version."""
    mine: dict[str, tuple[Path, EnvVar]] = {}
    for i, variable in enumerate(container.env):
        name = variable.name
        if name[:1] in "NC" and (name in _OURS or name.startswith(_REQUIRE)):
            mine[name] = ((*path, "env", i), variable)
    if not mine:
        return _of_image(path, container.image, compat=compat)
    if (off := mine.get("NVIDIA_DISABLE_REQUIRE")) and off[1].value in _TRUE:
        return []
    compat = compat or _COMPAT in mine
    required = [
        _Need(place, name, variable.value, requirement(variable.value), compat)
        for name, (place, variable) in mine.items()
        if name.startswith(_REQUIRE) and _is_plain(variable)
    ]
    if required:
        return required
    if (named := mine.get("CUDA_VERSION")) and _is_plain(named[1]):
        toolkit = version(named[1].value)
        return [_Need(named[0], "CUDA_VERSION", named[1].value, at_least(toolkit) if toolkit else None, compat)]
    return _of_image(path, container.image, compat=compat)


def _of_image(path: Path, image: str, *, compat: bool) -> list[_Need]:
    toolkit = tagged(image)
    return [_Need((*path, "image"), "the image's tag", image, at_least(toolkit), compat)] if toolkit else []


def _is_plain(variable: EnvVar) -> bool:
    """Can the value be read here? Not from elsewhere, nor made of other variables."""
    return bool(variable.value) and variable.value_from is None and "$(" not in variable.value


def stated(pod: Pod, asking: Mapping[Path, Container]) -> Iterator[Requirement | None]:
    """Everything that a pod and its images say they need, whatever the container runtime is told to check.

    None stands for what cannot be read, and for a container of which nobody names the CUDA.
    """
    text = pod.metadata.annotations.get(CUDA)
    if text is not None:
        yield from _with_doubt([declared(text)])
        return
    for container in asking.values():
        yield from _with_doubt(list(_stated_in(container)))


def _with_doubt(found: list[Requirement | None]) -> list[Requirement | None]:
    known = None in found or any(need.toolkit for need in found if need)
    return found if known else [*found, None]


def _stated_in(container: Container) -> Iterator[Requirement | None]:
    toolkit = tagged(container.image)
    if toolkit:
        yield at_least(toolkit)
    for variable in container.env:
        if variable.name[:1] in "NC" and (variable.name == "CUDA_VERSION" or variable.name.startswith(_REQUIRE)):
            yield from _stated_by(variable)


def _stated_by(variable: EnvVar) -> Iterator[Requirement | None]:
    if not _is_plain(variable):
        if variable.value or variable.value_from is not None:
            yield None
    elif variable.name == "CUDA_VERSION":
        toolkit = version(variable.value)
        yield at_least(toolkit) if toolkit else None
    else:
        yield requirement(variable.value)
