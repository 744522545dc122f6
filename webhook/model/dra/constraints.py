"""Constraints of a claim between its devices, one at a time as devices are added and taken back.

Source: `matchAttributeConstraint` and `distinctAttributeConstraint` of
`k8s.io/dynamic-resource-allocation/structured/internal/incubating` of Kubernetes 1.36.3. A distinct constraint
remembers one value for each request, the last one: several devices of one request may have equal values.
"""

from __future__ import annotations

from webhook.model.claims import DeviceConstraint
from webhook.model.dra.resource_slices import Device, DeviceAttribute

UNKNOWN_VALUE = DeviceAttribute()


class ConstraintState:
    """A constraint, and the attributes of the devices that it covers so far."""

    __slots__ = ("_attribute", "_count", "_distinct", "_first", "_of_requests", "_requests")

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests)
        self._distinct = constraint.match_attribute is None
        self._attribute = constraint.match_attribute or constraint.distinct_attribute or ""
        self._count = 0
        self._first = UNKNOWN_VALUE
        self._of_requests: dict[str, DeviceAttribute] = {}

    def add(self, request: str, choice: str, driver: str, device: Device) -> bool:
        """Add a device if the constraint allows it; False if not."""
        if not self._covers(request, choice):
            return True
        attribute = find_attribute(self._attribute, driver, device)
        if attribute is None or (self._count and not self._allows(attribute)):
            return False
        if self._distinct:
            self._of_requests[request] = attribute
        elif not self._count:
            self._first = attribute
        self._count += 1
        return True

    def remove(self, request: str, choice: str) -> None:
        """Take the device back that was added last."""
        if self._covers(request, choice):
            self._count -= 1
            self._of_requests.pop(request, None)

    def matched_value(self, request: str, choice: str, driver: str, device: Device) -> DeviceAttribute | None:
        """Return the value that a constraint on equal values compares; None if it does not compare the device."""
        if self._distinct or not self._covers(request, choice):
            return None
        return find_attribute(self._attribute, driver, device) or UNKNOWN_VALUE

    def _covers(self, request: str, choice: str) -> bool:
        if not self._requests or request in self._requests:
            return True
        return bool(choice) and f"{request}/{choice}" in self._requests

    def _allows(self, attribute: DeviceAttribute) -> bool:
        if self._distinct:
            known = self._of_requests.values()
            return not known or (attribute != UNKNOWN_VALUE and attribute not in known)
        return attribute != UNKNOWN_VALUE and attribute == self._first


def find_attribute(name: str, driver: str, device: Device) -> DeviceAttribute | None:
    """Return an attribute of a device by its qualified name, which drivers shorten in their own domain."""
    if name in device.attributes:
        return device.attributes[name]
    domain, _, short = name.partition("/")
    return device.attributes.get(short) if domain == driver and short else None


def attribute_names(driver: str, device: Device) -> set[str]:
    """Return the qualified names of a device's attributes."""
    return {name if "/" in name else f"{driver}/{name}" for name in device.attributes}
