"""Devices of the cluster by what the selectors of a request do with them, and their words in findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from webhook.engine.policy_findings import PolicyFinding
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.cel.values import CelMap
from webhook.model.dra.device_selectors import (
    DeviceSelectorProgram,
    SelectorRuntimeError,
    device_value,
)
from webhook.model.dra.published_devices import PublishedDevice
from webhook.model.dra.selector_advice import (
    SelectorCondition,
    failing_conditions,
)
from webhook.model.dra.selector_cache import compile_cached_selector
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath

MAX_TEXT = 400
"""Longest text of an expression in a finding."""


class RequestSelector(NamedTuple):
    """A selector of a request or of its class.

    Attributes:
        path: Where the request has it; the name of the class for a selector of the class.
        class_name: The class; "" for a selector of the request.
    """

    program: DeviceSelectorProgram
    path: FieldPath
    class_name: str


def compile_selector(expression: str, path: FieldPath, class_name: str = "") -> RequestSelector:
    """Compile a selector of a request.

    Raises:
        SelectorCompileError: The API server rejects it.
        UnmodeledExpressionError: It is not evaluated here.
    """
    return RequestSelector(compile_cached_selector(expression), path, class_name)


class EvaluatedDevice(NamedTuple):
    """A device, and its value in CEL."""

    published: PublishedDevice
    value: CelMap


def evaluate_devices(devices: Iterable[PublishedDevice]) -> Iterator[EvaluatedDevice]:
    """Yield devices with their values."""
    for each in devices:
        try:
            yield EvaluatedDevice(each, device_value(each.pool.driver, each.device))
        except SelectorRuntimeError as error:
            raise UnmodeledExpressionError(f"device {each.device.name}: {error}") from None


class DeviceGroups(NamedTuple):
    """The devices of a cluster, by what the selectors of a request do with them.

    Attributes:
        class_name: The class of the request if it has selectors, else "".
        matching: Those that all select.
        failing: Those on which a selector fails, by selector.
        excluded_by_request: Those that the class selects, but not a selector of the request.
        excluded_by_class: Those that the class does not select.
    """

    class_name: str
    matching: Sequence[EvaluatedDevice]
    failing: Sequence[tuple[RequestSelector, Sequence[EvaluatedDevice]]]
    excluded_by_request: Sequence[EvaluatedDevice]
    excluded_by_class: Sequence[EvaluatedDevice]

    def read_by(self, selector: RequestSelector) -> Sequence[EvaluatedDevice]:
        """Return the devices on which a selector is evaluated: one of a request reads only those of its class."""
        failing = [each for one, some in self.failing if not one.class_name for each in some]
        of_class = [*self.matching, *failing, *self.excluded_by_request]
        return self.every if selector.class_name else of_class

    @property
    def every(self) -> Sequence[EvaluatedDevice]:
        """All devices."""
        failing = [each for _, some in self.failing for each in some]
        return [*self.matching, *failing, *self.excluded_by_request, *self.excluded_by_class]


def group_devices(selectors: Sequence[RequestSelector], devices: Sequence[EvaluatedDevice]) -> DeviceGroups:
    """Group devices by the first selector that does not select them."""
    failing: dict[int, list[EvaluatedDevice]] = {}
    matching, by_request, by_class = list[EvaluatedDevice](), list[EvaluatedDevice](), list[EvaluatedDevice]()
    for each in devices:
        index, selected = first_obstacle(selectors, each)
        if index < 0:
            matching.append(each)
        elif selected is None:
            failing.setdefault(index, []).append(each)
        else:
            (by_class if selectors[index].class_name else by_request).append(each)
    class_name = next((one.class_name for one in selectors if one.class_name), "")
    by_selector = [(selectors[index], some) for index, some in sorted(failing.items())]
    return DeviceGroups(class_name, matching, by_selector, by_request, by_class)


def first_obstacle(selectors: Sequence[RequestSelector], each: EvaluatedDevice) -> tuple[int, bool | None]:
    """Return the first selector that does not select a device, and False, or None if it fails; -1 if all do."""
    for index, selector in enumerate(selectors):
        try:
            if not selector.program.selects_value(each.value):
                return index, False
        except SelectorRuntimeError:
            return index, None
    return -1, True


class ExcludedDevice(NamedTuple):
    """A device that a request does not get, and the conditions that it fails, each with its selector."""

    published: PublishedDevice
    value: CelMap
    failing: Sequence[tuple[RequestSelector, SelectorCondition]]


def explain_exclusion(
    conditions: Sequence[tuple[RequestSelector, SelectorCondition]], each: EvaluatedDevice
) -> ExcludedDevice:
    """Return a device with the conditions that it fails."""
    failing = [(selector, one) for selector, one in conditions if failing_conditions([one], each.value)]
    return ExcludedDevice(each.published, each.value, failing)


def describe_device(published: PublishedDevice) -> str:
    """Return a device for people, with its product or profile if it has one."""
    attributes = published.device.attributes
    kinds = [attributes[name].string_value for name in ("profile", "productName") if name in attributes]
    about = f" ({', '.join(filter(None, kinds))})" if any(kinds) else ""
    return f"{published.device.name} of {published.pool.pool}{about}"


def on_one_line(expression: str) -> str:
    """Return an expression without its line breaks."""
    return " ".join(line.strip() for line in expression.splitlines())


def claim_warning(code: str, path: FieldPath, message: str, fix: str, reason: str = "") -> PolicyFinding:
    """Return a finding about a claim; it is a warning at most."""
    return PolicyFinding(code, path, message, fix, PolicyMode.WARN, reason)
