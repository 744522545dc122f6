"""Reviews of real objects, and random mutations of them: of bytes, values, types and structure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.builders import Json
from tests.server.site import encoded, review
from webhook.audit.object_files import SourceObject, read_objects

Holder = dict[str, Any] | list[Any]

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**40, 0.5, 1e308, -0.0),
    *("", " ", "0", "1", "-1", "0.5", "1e3", "1e400", "1k", "1Ki", "9" * 400, "NaN", "true", "null", "٣", "\x00", "\n"),
    *("a/b~c", "\u2028", "\U0001f600", "x" * 300, "x" * 70_000, "$(A)", "../..", "/dev/nvidia0", "nvidia", "Exists"),
    *("DoesNotExist", "In", "Gt", "NoExecute", "Pod", "v1", "UPDATE", "DELETE", "8Gi", "20%", "true"),
    *([], {}, [None], [[]], {"": None}, [{}], {"a": {"b": {}}}, [[[[[[[[]]]]]]]], [1, "a", None, {}]),
)
AMOUNTS: tuple[Any, ...] = (
    *(None, 0, 2**63, 2**64, -(2**63) - 1, 10**30, 10**299, 1e300, 5e-324, -1, True),
    *("0e-2147483648", "0e2147483647", "1e2147483647", "1e-2147483648", "1e402", "1e400", "1e150", "1e101", "1e100"),
    *("9223372036854775807", "9223372036854775808", "-1e300", "1e18", "1e19", "8Ei", "16GB", "1e", ".", "k", "1e99n"),
    *("9" * 64, "9" * 65, "9" * 5000, "0." + "0" * 60 + "1", "1e4294967296", "1e9223372036854775808", "1Gi", "0.5"),
)
"""Amounts at and beyond every bound: of 64 bits, of floats, of exponents and of digits."""

RESOURCES = (
    *("cpu", "memory", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "rightslice.dev/gpu-milli", "ephemeral-storage"),
    *("hugepages-2Mi", "hugepages-1e30", "hugepages-0", "hugepages-1e402", "hugepages-0e-2147483648", "example.com/a"),
)
INTEGER_FIELDS = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "priority", "tolerationSeconds", "replicas")

VALUES = tuple(json.dumps(value) for value in _VALUES)
KEYS = (
    *("", "spec", "metadata", "name", "containers", "initContainers", "ephemeralContainers", "resources", "limits"),
    *("requests", "env", "envFrom", "value", "valueFrom", "volumes", "hostPath", "path", "volumeMounts", "mountPath"),
    *("nodeSelector", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "tolerations"),
    *("nodeSelectorTerms", "matchExpressions", "matchFields", "key", "operator", "values", "labels", "annotations"),
    *("runtimeClassName", "nodeName", "hostPID", "securityContext", "privileged", "overhead", "resourceClaims"),
    *("ownerReferences", "topologySpreadConstraints", "tolerationSeconds", "restartPolicy", "template", "replicas"),
    *("object", "oldObject", "uid", "operation", "kind", "apiVersion", "subResource", "userInfo", "dryRun"),
    *("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "nvidia.com/gpu.product", "amd.com/gpu"),
    *("rightslice.dev/gpu-memory", "rightslice.dev/gpu-compute", "rightslice.dev/keep", "rightslice.dev/decision"),
    *("rightslice.dev/original-resources", "rightslice.dev/gpu-milli", "kubernetes.io/config.mirror", "cdi.k8s.io/a"),
)
TOKENS = (
    *(b"NaN", b"1e400", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"[" * 300, b'{"a":' * 300),
    *(
        b'"uid":"u",',
        b'"nvidia.com/gpu":"8",',
        b"null",
        b"true",
        b",",
        b":",
        b'"',
        b"\\",
        b"}",
        b"]",
        b" ",
        b"\n",
        b"\0",
    ),
    *(b"-", b"0", b"9" * 500, b"1.5e10", b"/**/"),
)


class MutatedReview(NamedTuple):
    """A body, and whether it is still valid JSON: only mutations of bytes can break that."""

    body: bytes
    whole: bool


def bases(sources: Iterable[str]) -> list[bytes]:
    """Return a CREATE and an UPDATE review of every object in these files and folders."""
    entries = [entry for entry in read_objects(sources) if isinstance(entry, SourceObject)]
    created = [_review(entry.data) for entry in entries]
    updated = [_review(entry.data, operation="UPDATE", oldObject=entry.data) for entry in entries]
    return [encoded(one) for one in (*created, *updated)]


def _review(data: Json, **request: Any) -> Json:
    group, _, version = data["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": data["kind"]}
    resource = {"group": group, "version": version, "resource": f"{data['kind'].lower()}s"}
    return review(json.loads(encoded(data)), kind=kind, resource=resource, **request)


def damage(base: bytes, others: Sequence[bytes], chance: Random) -> MutatedReview:
    """Apply one to six mutations to a review, to its values or its bytes."""
    if chance.random() < 0.2:
        return MutatedReview(_in_bytes(base, chance), whole=False)
    data = json.loads(base)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice(CHANGES)(data, others, chance)
    return MutatedReview(encoded(data), whole=True)


def _in_bytes(base: bytes, chance: Random) -> bytes:
    body = bytearray(base)
    for _ in range(chance.choice((1, 1, 2, 8))):
        start = chance.randrange(len(body) + 1)
        end = min(len(body), start + chance.choice((0, 1, 1, 2, 16, 200)))
        how = chance.randrange(4)
        if how == 0:
            body[start:end] = b""
        elif how == 1:
            body[start:end] = chance.choice(TOKENS)
        elif how == 2:
            body[start:start] = body[start:end]
        else:
            body[start:end] = chance.randbytes(end - start)
    return bytes(body[: chance.randrange(len(body) + 1)] if chance.random() < 0.05 else body)


def _somewhere(data: Json, chance: Random) -> tuple[Holder, Any]:
    """Return a random map or list, and one of its keys; deep ones are as likely as shallow ones."""
    holder: Holder = data
    key: Any = "request"
    for _ in range(chance.choice((0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 10))):
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        holder = inner
        key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        if key == "request" and not isinstance(holder, dict):
            break
    return holder, key


def _value(chance: Random) -> Any:
    return json.loads(chance.choice(VALUES))


def _replace(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    holder[key] = _value(chance)


def _remove(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    if holder is not data:
        del holder[key]


def _wrap(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    holder[key] = chance.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 3, str(holder[key])))


def _insert(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    inner = holder[key]
    if isinstance(inner, dict):
        inner[chance.choice(KEYS)] = _value(chance)
    elif isinstance(inner, list):
        inner.insert(chance.randrange(len(inner) + 1), _value(chance))


def _repeat(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    inner = holder[key]
    if isinstance(inner, list) and len(inner) < 1000:
        inner *= chance.choice((2, 3, 50))
    elif isinstance(inner, dict) and len(inner) < 1000:
        for number in range(chance.choice((2, 50))):
            inner[f"{chance.choice(KEYS)}{number}"] = _value(chance)


def _swap(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    other, other_key = _somewhere(data, chance)
    holder[key], other[other_key] = json.loads(json.dumps([other[other_key], holder[key]]))


def _splice(data: Json, others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    other, other_key = _somewhere(json.loads(chance.choice(others)), chance)
    holder[key] = other[other_key]


def _rename(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    holder, key = _somewhere(data, chance)
    if isinstance(holder, dict) and holder is not data:
        holder[chance.choice((*KEYS, key.upper(), key[:-1]))] = holder.pop(key)


def _amounts(data: Json, _others: Sequence[bytes], chance: Random) -> None:
    """Set amounts and integers of the object, of its old version too, and of its template."""
    request = data.get("request")
    for version in ("object", "oldObject"):
        holder = request.get(version) if isinstance(request, dict) else None
        spec = holder.get("spec") if isinstance(holder, dict) else None
        while isinstance(spec, dict) and isinstance(spec.get("template"), dict):
            spec[chance.choice(INTEGER_FIELDS)] = chance.choice(AMOUNTS)
            spec = spec["template"].get("spec")
        if isinstance(spec, dict):
            _set_amounts(spec, chance)


def _set_amounts(spec: Json, chance: Random) -> None:
    containers = _members(spec.get("containers")) + _members(spec.get("initContainers"))
    for holder in chance.sample([spec, *containers], chance.randint(1, len(containers) + 1)):
        resources = holder.setdefault("resources", {})
        side = chance.choice(("limits", "requests"))
        if isinstance(resources, dict) and isinstance(resources.setdefault(side, {}), dict):
            for _ in range(chance.choice((1, 1, 2, 4))):
                resources[side][chance.choice(RESOURCES)] = chance.choice(AMOUNTS)
    if chance.random() < 0.3:
        spec["tolerations"] = [{"operator": "Exists", "tolerationSeconds": chance.choice(AMOUNTS)}]
    if chance.random() < 0.2:
        spec["overhead"] = {chance.choice(RESOURCES): chance.choice(AMOUNTS)}
    if chance.random() < 0.2:
        spec[chance.choice(INTEGER_FIELDS)] = chance.choice(AMOUNTS)


def _members(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


CHANGES: tuple[Callable[[Json, Sequence[bytes], Random], None], ...] = (
    *(
        _replace,
        _replace,
        _replace,
        _remove,
        _wrap,
        _insert,
        _insert,
        _repeat,
        _swap,
        _splice,
        _splice,
        _rename,
        _amounts,
        _amounts,
    ),
)
