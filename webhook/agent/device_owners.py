"""Tell which pod each GPU is allocated to: the kubelet's PodResources API (v1), and the ids of device plugins.

The fields that are read are declared here, and protobuf builds classes from them, so no generated file has to match the
library's version. Device ids are UUIDs of GPUs and MIG devices, "UUID::2" for a share; on GKE "nvidia0",
"nvidia0/gi3", and "nvidia0/vgpu1" or "nvidia0/gi3/vgpu1" for shares.

Source: k8s.io/kubelet pkg/apis/podresources/v1/api.proto.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Self

import grpc
import msgspec
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

from webhook.model.gpu_node import GpuDevice, GPUNodeStatus, MigInstance

_GKE_DEVICE_ID = re.compile(r"nvidia(\d{1,3})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,4})?\Z")

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
LIST_METHOD = "/v1.PodResourcesLister/List"
CALL_SECONDS = 5.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""gRPC's default of 4 MiB is too low for a node full of pods."""

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
"""Pods ("namespace/name") by the id of the device allocated to them."""


class KubeletUnavailableError(Exception):
    """The kubelet's PodResources API does not answer."""


def build_message_classes() -> Mapping[str, Any]:
    """Build the class of each message, by name."""
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
    """Client of the kubelet's PodResources API. Use it with `async with`."""

    def __init__(self, socket: str = SOCKET) -> None:
        """Prepare; no request is sent yet."""
        self._classes = build_message_classes()
        self._channel = grpc.aio.insecure_channel(f"unix://{socket}", options=OPTIONS)
        self._list = self._channel.unary_unary(
            LIST_METHOD,
            request_serializer=self._classes["ListPodResourcesRequest"].SerializeToString,
            response_deserializer=self._classes["ListPodResourcesResponse"].FromString,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def device_owners(self) -> DeviceOwners:
        """Return the pods of each device.

        Raises:
            KubeletUnavailableError: The kubelet is down, starting, or limits the rate of calls.
        """
        request = self._classes["ListPodResourcesRequest"]()
        try:
            answer = await self._list(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnavailableError(f"{error.code().name}: {error.details()}") from error
        return owners_in_response(answer)


def owners_in_response(answer: Any) -> DeviceOwners:
    """Return the pods of each device in a ListPodResourcesResponse. A resource may have several entries."""
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                for device in devices.device_ids:
                    owners[device].add(f"{pod.namespace}/{pod.name}")
    return {device: tuple(sorted(pods)) for device, pods in owners.items()}


def with_device_owners(status: GPUNodeStatus, owners: DeviceOwners) -> GPUNodeStatus:
    """Return the status with the pods of each GPU and MIG instance; ids of other devices are ignored."""
    by_device: defaultdict[str, set[str]] = defaultdict(set)
    for device, pods in owners.items():
        by_device[device_of_id(device)].update(pods)
    gpus = tuple(_with_gpu_owners(gpu, by_device) for gpu in status.gpus)
    return msgspec.structs.replace(status, gpus=gpus)


def device_of_id(name: str) -> str:
    """Return the id of the device without the number of a share.

    >>> device_of_id("GPU-8f::3"), device_of_id("nvidia0/gi3/vgpu1"), device_of_id("nvidia1/vgpu0")
    ('GPU-8f', 'nvidia0/gi3', 'nvidia1')
    """
    gke = _GKE_DEVICE_ID.match(name)
    if gke:
        return f"nvidia{gke[1]}/gi{gke[2]}" if gke[2] else f"nvidia{gke[1]}"
    return name.partition("::")[0]


def _with_gpu_owners(gpu: GpuDevice, owners: Mapping[str, set[str]]) -> GpuDevice:
    whole = f"nvidia{gpu.index}"

    def with_owner(instance: MigInstance) -> MigInstance:
        pods = _owners_of_ids(owners, (*instance.uuids, f"{whole}/gi{instance.id}"))
        return msgspec.structs.replace(instance, pod=pods[0] if pods else "")

    instances = tuple(map(with_owner, gpu.instances))
    return msgspec.structs.replace(gpu, pods=_owners_of_ids(owners, (gpu.uuid, whole)), instances=instances)


def _owners_of_ids(owners: Mapping[str, set[str]], ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({pod for device in ids for pod in owners.get(device, ())}))
