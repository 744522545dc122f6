"""The pod templates inside a workload, each read as the pod that will come of it.

A policy set says where the templates of a kind stand. What stands there may be a pod template, a bare pod
spec (Notebook), or one of the forms of `template_forms`; each comes back with the way from a field of the pod
to the field of the workload that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from webhook.engine.template_forms import Form, form_of
from webhook.errors import ReviewError
from webhook.model.paths import Path
from webhook.model.pods import Metadata, Pod, PodSpec, pod_of
from webhook.model.requests import Request
from webhook.policy.workloads import TemplatePath

Step = tuple[dict[str, Any], str]
"""A map on the way to a template, and the key that was taken from it."""

_NO_POD = Pod(Metadata(), PodSpec())
_NO_METADATA: dict[str, Any] = {"metadata": {}}
_TIMES = ("replicas", "numOfHosts")
_COUNTS = (*_TIMES, "parallelism", "completions")
"""Keys on the way to a template that say how many there are to be."""


class Template(msgspec.Struct, frozen=True):
    """One pod template of a workload.

    Attributes:
        path: Where the template stands in the workload, for example ("spec", "template").
        spec_path: Where the pod's `spec` stands: path + ("spec",), or `path` itself for a bare pod spec.
        pod: The template read as a pod; an empty one where `error` says why it cannot be read.
        data: What `pod` was read from: a `spec`, and `metadata` where there is any.
        replicas: How many pods come of it at one time, as far as the workload says; 1 where it does not.
        several: True if more than one pod comes of it.
        error: Why this is no pod template, without the path; "" if it is one.
        error_path: Where in the workload that is so.
        moves: From the beginning of a pod's path to where it stands in the workload, the longest first.
    """

    path: Path
    spec_path: Path
    pod: Pod
    data: Mapping[str, Any] = {}
    replicas: int = 1
    several: bool = False
    error: str = ""
    error_path: Path = ()
    moves: tuple[tuple[Path, Path], ...] = ()

    def at(self, path: Path) -> Path:
        """Where a field of the pod stands in the workload.

        >>> place = ("spec", "jobTemplate", "spec", "template")
        >>> Template(place, (*place, "spec"), _NO_POD).at(("spec", "containers", 0))
        ('spec', 'jobTemplate', 'spec', 'template', 'spec', 'containers', 0)
        """
        for start, target in self.moves:
            if path[: len(start)] == start:
                return target + path[len(start) :]
        return self.spec_path + path[1:] if path[:1] == ("spec",) else self.path + path


def templates(request: Request, paths: Iterable[TemplatePath]) -> Iterator[Template]:
    """Read every pod template of the request's object.

    Args:
        request: Its object is read as plain data.
        paths: Where templates of this kind stand; "*" is every member of a list or map.

    Yields:
        One template for each place that holds something, in the order of `paths`, each place once. Parts of a
        workflow that run no container are passed over. Never raises.
    """
    data = request.load()
    seen: set[Path] = set()
    for path in paths:
        for place, steps, value in _targets(data, path):
            if place not in seen and (form := form_of(value, place, steps)) is not None:
                seen.add(place)
                yield _template(request.kind, place, steps, form)


def _targets(data: Any, path: TemplatePath) -> Iterator[tuple[Path, tuple[Step, ...], Any]]:
    """What stands at a path, with the maps passed on the way; places that hold nothing are left out."""
    found: list[tuple[Path, tuple[Step, ...], Any]] = [((), (), data)]
    for key in path:
        found = [step for place, steps, value in found for step in _next(place, steps, value, key)]
    yield from found


def _next(place: Path, steps: tuple[Step, ...], value: Any, key: str) -> Iterator[tuple[Path, tuple[Step, ...], Any]]:
    if key == "*" and isinstance(value, list):
        members: Iterable[tuple[str | int, Any]] = enumerate(value)
    elif isinstance(value, dict):
        members = list(value.items()) if key == "*" else [(key, value.get(key))]
    else:
        return
    for name, member in members:
        if member is not None:
            passed = (*steps, (value, str(name))) if isinstance(value, dict) else steps
            yield (*place, name), passed, member


def _template(kind: str, place: Path, steps: tuple[Step, ...], form: Form) -> Template:
    if form.error:
        return Template(place, form.spec_path, _NO_POD, error=form.error, error_path=place)
    try:
        pod = _read(form.data)
    except ReviewError as error:
        sentence = str(error).removeprefix("object: ")
        unread = Template(place, form.spec_path, _NO_POD, error=sentence, moves=form.moves)
        return msgspec.structs.replace(unread, error_path=unread.at(error.path))
    replicas = form.replicas if form.replicas is not None else _replicas(steps)
    several = replicas > 1 or kind == "DaemonSet"
    return Template(place, form.spec_path, pod, form.data, replicas, several, moves=form.moves)


def _read(data: object) -> Pod:
    if isinstance(data, dict):
        data = _NO_METADATA | data
    try:
        return msgspec.convert(data, Pod)
    except (msgspec.ValidationError, RecursionError):
        return pod_of(data)


def _replicas(steps: tuple[Step, ...]) -> int:
    """Replicas of replicas: a JobSet's jobs times their parallelism, a RayCluster's groups times their hosts."""
    total = 1
    for members, key in steps:
        for name in _TIMES:
            total *= _count(members.get(name), 1)
        parallel = _count(members.get("parallelism"), 1)
        total *= min(parallel, _count(members.get("completions"), parallel))
        if key == "workerTemplate":
            total *= max(1, _count(members.get("size"), 1) - ("leaderTemplate" in members))
    return total


def miscounts(data: Any, place: Path) -> Iterator[tuple[Path, object]]:
    """What an object says of how many pods there are to be and no API server takes, on the way to a template.

    Args:
        data: The object.
        place: Where the template stands in it.
    """
    for depth, key in enumerate(place):
        if isinstance(data, dict):
            names = (*_COUNTS, "size") if key == "workerTemplate" else _COUNTS
            said = [(name, data[name]) for name in names if name != key and data.get(name) is not None]
            yield from (((*place[:depth], name), value) for name, value in said if _count(value, -1) < 0)
        data = data[key]


def _count(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
