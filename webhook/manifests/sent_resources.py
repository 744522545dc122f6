"""The resource names by which the API server sends pods to the webhooks, and further ones that an admin adds.

A DeviceClass may serve GPUs under a name of any domain. The match conditions know those of `GPU_RESOURCE_PREFIXES`;
pods with another name are not sent until it is added. Each condition tests the prefixes of GPUs in one row of terms,
and the further terms follow the last one; the chart adds the same text (`templates/admission.yaml`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from webhook.manifests.cel_conditions import GPU_RESOURCE_PREFIXES, starts_with_cel
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.model.claims import DeviceClasses, may_hold_gpus
from webhook.well_known import GROUP, Json

_LAST_TERM = starts_with_cel("name", GPU_RESOURCE_PREFIXES[-1:])
_DEFAULT_NAMES = tuple(f"{prefix}*" for prefix in GPU_RESOURCE_PREFIXES)

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
RESOURCE_NAME_PATTERN = f"^{_LABEL}([.]{_LABEL})*/({_NAME}|([A-Za-z0-9][-A-Za-z0-9_.]{{0,62}})?[*])$"
"""A name of an extended resource, or the start of names and `*`; the domain must be there."""

RESERVED_NAME_PATTERN = "^requests[.]|kubernetes[.]io/"
"""No extended resource has such a name; those of device classes are always sent."""

MAX_NAME_LENGTH, MAX_NAMES = 253, 16
"""Each name adds to the cost of the match conditions for every resource of a pod."""

_NAME_TERM = re.compile(r"(?<![\w.])name(?:[.]startsWith\('(?P<prefix>[^']*)'\)| == '(?P<name>[^']*)')")
_VALIDATING_WEBHOOK = f"validate.{GROUP}"


def is_resource_glob(text: str) -> bool:
    """Return whether a text is the name of an extended resource, or the start of such names with `*` at the end.

    >>> [is_resource_glob(text) for text in ("example.com/gpu", "example.com/*", "gpu", "example.com/*-gpu")]
    [True, True, False, False]
    """
    valid = re.fullmatch(RESOURCE_NAME_PATTERN, text) and not re.search(RESERVED_NAME_PATTERN, text)
    return bool(valid) and len(text) <= MAX_NAME_LENGTH


def resource_flags(names: Iterable[str]) -> str:
    """Return the flags of `rightslice install` for further resource names."""
    return " ".join(f"--gpu-resource {shlex.quote(name)}" for name in names)


def with_gpu_resources(objects: Iterable[Json], names: Sequence[str]) -> list[Json]:
    """Return copies of the objects, with webhooks that also get pods with other resource names.

    Args:
        names: Names, or starts of names that end with `*`; see `is_resource_glob`.
    """
    copies = deepcopy(list(objects))
    terms = " || ".join([_LAST_TERM, *map(_name_cel, names)])
    for webhook in (each for one in copies if one["kind"] in WEBHOOK_KINDS for each in one["webhooks"]):
        for condition in webhook.get("matchConditions", ()):
            condition["expression"] = condition["expression"].replace(_LAST_TERM, terms)
    return copies


def _name_cel(name: str) -> str:
    return starts_with_cel("name", [name[:-1]]) if name.endswith("*") else f"name == '{name}'"


class SentResources(NamedTuple):
    """The resource names by which pods are sent, as an admin writes them.

    Attributes:
        names: Names, and starts of names that end with `*`.
    """

    names: tuple[str, ...] = _DEFAULT_NAMES

    @property
    def added(self) -> tuple[str, ...]:
        """Those that an admin added and may add again; not `*`, as which a webhook without conditions is read."""
        return tuple(name for name in self.names if name not in _DEFAULT_NAMES and is_resource_glob(name))

    def includes(self, resource: str) -> bool:
        """Return whether a pod is sent because of a resource."""
        return any(resource == name or (name.endswith("*") and resource.startswith(name[:-1])) for name in self.names)


def read_sent_resources(validating: Mapping[str, Any]) -> SentResources:
    """Return the names by which an installed configuration gets new pods; a webhook without conditions gets all."""
    webhooks = validating.get("webhooks") or ()
    conditions = next((each.get("matchConditions") for each in webhooks if each["name"] == _VALIDATING_WEBHOOK), None)
    if not conditions:
        return SentResources(("*",))
    terms = (found for each in conditions for found in _NAME_TERM.finditer(each["expression"]))
    return SentResources(tuple(dict.fromkeys(each["name"] or f"{each['prefix']}*" for each in terms)))


class UnsentClass(NamedTuple):
    """A device class whose pods are not sent if they request it by its resource name."""

    device_class: str
    resource: str

    def __str__(self) -> str:
        """Return a sentence without full stop."""
        return f"pods that request {self.resource} of DeviceClass {self.device_class} are not sent to the webhooks"


def find_unsent_classes(classes: DeviceClasses, sent: SentResources) -> Iterator[UnsentClass]:
    """Yield the device classes that may hold GPUs and serve them under a name by which pods are not sent."""
    for name, spec in sorted(classes.items()):
        resource = spec.extended_resource_name
        if resource and not sent.includes(resource) and may_hold_gpus(name, classes):
            yield UnsentClass(name, resource)
