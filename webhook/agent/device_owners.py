"""Which pod holds which device: the kubelet's PodResources (v1), over its Unix socket.

The messages are declared here field by field, as many as are read, and made into classes by protobuf itself: no
generated file has to follow the library's version.

Source: k8s.io/kubelet pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
import msgspec
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

from webhook.model.gpu_node import GpuDevice, GPUNodeStatus, MigInstance

_GKE_DEVICE_ID = re.compile(r"nvidia(\d{1,3})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,4})?\Z")

PodNames = tuple[str, ...]


SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
CALL_SECONDS = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes; gRPC's own bound of 4 MiB is too low for a node full of pods."""

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.enable_http_proxy", 0),
)

MESSAGES: Mapping[str, tuple[tuple[int, str, str], ...]] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": ((1, "pod_resources", "PodResources"),),
    "PodResources": ((1, "name", ""), (2, "namespace", ""), (3, "containers", "ContainerResources")),
    "ContainerResources": ((1, "name", ""), (2, "devices", "ContainerDevices")),
    "ContainerDevices": ((1, "resource_name", ""), (2, "device_ids", "*")),
}
"""Number, name and kind of the fields: "" a string, "*" strings, else messages of that kind."""

DeviceOwners = Mapping[str, tuple[str, ...]]
"""The pods ("namespace/name") that hold each device, by the id that its plugin gave it."""


class KubeletUnavailableError(Exception):
    """The kubelet does not say who holds what."""


def build_message_classes() -> Mapping[str, Any]:
    """The class of each message, by name."""
    file = FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            text = kind in ("", "*")
            message.field.add(
                name=field,
                number=number,
                label=FieldDescriptorProto.LABEL_REPEATED if kind else FieldDescriptorProto.LABEL_OPTIONAL,
                type=FieldDescriptorProto.TYPE_STRING if text else FieldDescriptorProto.TYPE_MESSAGE,
                type_name=None if text else f".v1.{kind}",
            )
    return {name.removeprefix("v1."): found for name, found in GetMessages([file], pool=DescriptorPool()).items()}


class PodResourcesClient:
    """The kubelet of this node. Use it with `async with`."""

    def __init__(self, socket: str = SOCKET) -> None:
        """Prepare; nothing is asked yet."""
        self._classes = build_message_classes()
        self._channel = grpc.aio.insecure_channel(f"unix://{socket}", options=OPTIONS)
        self._list = self._channel.unary_unary(
            LIST_METHOD,
            request_serializer=self._classes["ListPodResourcesRequest"].SerializeToString,
            response_deserializer=self._classes["ListPodResourcesResponse"].FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def device_owners(self) -> DeviceOwners:
        """Who holds which device now.

        Raises:
            KubeletAwayError: it is not there, is starting, or has had too many calls.
        """
        request = self._classes["ListPodResourcesRequest"]()
        try:
            answer = await self._list(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnavailableError(f"{error.code().name}: {error.details()}") from error
        return owners_in_response(answer)


def owners_in_response(answer: Any) -> DeviceOwners:
    """Devices and their pods from a ListPodResourcesResponse. One resource may come in several entries."""
    held: defaultdict[str, set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                for device in devices.device_ids:
                    held[device].add(f"{pod.namespace}/{pod.name}")
    return {device: tuple(sorted(pods)) for device, pods in held.items()}


def with_device_owners(status: GPUNodeStatus, holders: Mapping[str, PodNames]) -> GPUNodeStatus:
    """The status with the pods that hold each GPU and each MIG instance.

    Args:
        status: What NVML sees.
        holders: Pods by device id; ids of other devices are left out.
    """
    by_device: defaultdict[str, set[str]] = defaultdict(set)
    for device, pods in holders.items():
        by_device[device_of_id(device)].update(pods)
    gpus = tuple(_with_gpu_owners(gpu, by_device) for gpu in status.gpus)
    return msgspec.structs.replace(status, gpus=gpus)


def device_of_id(name: str) -> str:
    """The device that an id stands for, without the number of a share.

    >>> device_of("GPU-8f::3"), device_of("nvidia0/gi3/vgpu1"), device_of("nvidia1/vgpu0")
    ('GPU-8f', 'nvidia0/gi3', 'nvidia1')
    """
    gke = _GKE_DEVICE_ID.match(name)
    if gke:
        return f"nvidia{gke[1]}/gi{gke[2]}" if gke[2] else f"nvidia{gke[1]}"
    return name.partition("::")[0]


def _with_gpu_owners(gpu: GpuDevice, holders: Mapping[str, set[str]]) -> GpuDevice:
    whole = f"nvidia{gpu.index}"

    def instance(one: MigInstance) -> MigInstance:
        pods = _owners_of_ids(holders, (*one.uuids, f"{whole}/gi{one.id}"))
        return msgspec.structs.replace(one, pod=pods[0] if pods else "")

    cuts = tuple(instance(one) for one in gpu.instances)
    return msgspec.structs.replace(gpu, pods=_owners_of_ids(holders, (gpu.uuid, whole)), instances=cuts)


def _owners_of_ids(holders: Mapping[str, set[str]], names: Iterable[str]) -> PodNames:
    return tuple(sorted({pod for name in names for pod in holders.get(name, ())}))
