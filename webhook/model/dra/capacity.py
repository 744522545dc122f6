"""The capacity of a device that a request consumes.

Source: `k8s.io/dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go` of Kubernetes 1.36.3.
Amounts are integers in nano-units.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from webhook.model.dra.resource_slices import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity
from webhook.model.pods import QuantityText
from webhook.model.quantity import NANO, parse_nano, parse_nano_or_none

Amounts = Mapping[str, int]

NO_AMOUNTS: Amounts = MappingProxyType({})


def consumed_amounts(device: Device, requests: Mapping[str, QuantityText]) -> Amounts:
    """Return what a request consumes of each capacity of a device: of those it does not name, the default or all."""
    return {name: _consumed_amount(capacity, requests.get(name)) for name, capacity in device.capacity.items()}


def has_capacity_left(
    device: Device, requests: Mapping[str, QuantityText], allocated: Amounts, allocating: Amounts
) -> bool:
    """Return whether a device has what a request consumes, in an amount that its policy allows.

    Args:
        device: The device.
        requests: The request's amounts.
        allocated: What claims have consumed of the device.
        allocating: What the same pod has been given of it.
    """
    if not all(name in device.capacity for name in requests):
        return False
    for name, amount in consumed_amounts(device, requests).items():
        capacity = device.capacity[name]
        if _violates_policy(amount, capacity.request_policy):
            return False
        if allocated.get(name, 0) + amount + allocating.get(name, 0) > parse_nano(capacity.value):
            return False
    return True


def _consumed_amount(capacity: DeviceCapacity, request: QuantityText | None) -> int:
    policy = capacity.request_policy
    if request is None:
        return parse_nano(policy.default if policy and policy.default is not None else capacity.value)
    amount = parse_nano_or_none(request)
    if amount is None:  # beyond what is read here: more than the device has
        return parse_nano(capacity.value) + 1
    if policy is None:
        return amount
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _round_up_in_range(amount, policy.valid_range.min, policy.valid_range)
    return next((valid for valid in map(parse_nano, policy.valid_values) if amount <= valid), amount)


def _round_up_in_range(amount: int, least: QuantityText, valid: CapacityRange) -> int:
    if amount < parse_nano(least):
        return parse_nano(least)
    if valid.step is None:
        return amount
    step, start = _whole(parse_nano(valid.step)), _whole(parse_nano(least))
    return (start + -(-(_whole(amount) - start) // step) * step) * NANO


def _violates_policy(amount: int, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount == parse_nano(policy.default)):
        return False
    if policy.valid_range is not None:
        return _is_out_of_range(amount, policy.valid_range)
    return bool(policy.valid_values) and amount not in map(parse_nano, policy.valid_values)


def _is_out_of_range(amount: int, valid: CapacityRange) -> bool:
    if valid.max is not None and amount > parse_nano(valid.max):
        return True
    if valid.step is None or valid.min is None:
        return False
    return (_whole(amount) - _whole(parse_nano(valid.min))) % _whole(parse_nano(valid.step)) != 0


def _whole(nano: int) -> int:
    """Return whole units, rounded up."""
    return -(-nano // NANO)
