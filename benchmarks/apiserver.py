"""A synthetic API server: a large cluster that exists only as the bytes of lists and watches.

It serves what a list-and-watch client needs (WatchList, bookmarks, 410 on request, paged lists) over TLS, and changes
pods at a given rate. Objects are as long as those of a real API server.

    GET  /api/v1/{nodes,namespaces,pods,persistentvolumeclaims,persistentvolumes,...}?limit=N&continue=...
    GET  /apis/storage.k8s.io/v1/{storageclasses,csinodes,volumeattachments,...}?limit=N&continue=...
    GET  the same with watch=1&...
    POST /rate/N      N pod events per second from now on
    POST /expire      every watch ends with 410, so that every client lists again
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import uvloop
from aiohttp import web

from benchmarks.api_objects import Json, as_stored

NODES, NAMESPACES = 5_000, 1_000
PODS, GPU_PODS = 150_000, 30_000
GPU_NODES = 4_000
CLAIMS = 20_000
"""Claims, one for each of the first pods with GPUs, each bound to a volume that is attached to the pod's node."""

DRIVER, ZONE_KEY = "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"
PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S", "Tesla-T4")
TICK_SECONDS = 0.02
BATCH = 64
"""Objects in one write."""

MARK = "@@{}@@"


def node(index: int) -> Json:
    """Return a node with the labels of GPU feature discovery and a cloud; four of five have 8 GPUs."""
    name = node_name(index)
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in map(str, range(40))}
    labels |= {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{index % 3}"}
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "250", "ephemeral-storage": "900Gi"}
    if index < GPU_NODES:
        amounts["nvidia.com/gpu"] = "8"
        labels |= {"nvidia.com/gpu.product": PRODUCTS[index % 4], "nvidia.com/gpu.memory": "81920"}
        labels |= {"nvidia.com/gpu.count": "8", "nvidia.com/mig.capable": "true", "nvidia.com/gpu.present": "true"}
    images = [{"names": [f"registry.example/image-{i}@sha256:{'0' * 64}"], "sizeBytes": 10**9} for i in range(30)]
    status = {"allocatable": amounts, "capacity": amounts, "images": images}
    status["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-06-01T00:00:00Z"}]
    metadata = {"name": name, "resourceVersion": "1", "uid": f"node-{index}", "labels": labels}
    return {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": status}


def node_name(index: int) -> str:
    """Return the name of a node."""
    return f"ip-10-{index // 65536}-{index // 256 % 256}-{index % 256}.example.internal"


def claim(index: int) -> Json:
    """Return a bound claim as an API server sends it."""
    annotations = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    annotations |= {"volume.kubernetes.io/storage-provisioner": DRIVER}
    annotations |= {"volume.kubernetes.io/selected-node": node_name(index % GPU_NODES)}
    metadata = _claim_reference(index) | {"resourceVersion": "1", "annotations": annotations}
    metadata |= {"labels": {"app": "work"}, "finalizers": ["kubernetes.io/pvc-protection"]}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "100Gi"}},
        "volumeMode": "Filesystem",
    }
    spec |= {"storageClassName": "gp3", "volumeName": volume_name(index)}
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}


def volume(index: int) -> Json:
    """Return the volume of a claim."""
    expression = {"key": ZONE_KEY, "operator": "In", "values": [f"zone-{index % 3}"]}
    source = {"driver": DRIVER, "volumeHandle": f"vol-{index:017}", "fsType": "ext4"}
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "100Gi"}, "claimRef": _claim_reference(index)}
    spec |= {"csi": source, "storageClassName": "gp3", "volumeMode": "Filesystem"}
    spec |= {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    metadata = {
        "name": volume_name(index),
        "resourceVersion": "1",
        "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER},
    }
    return {"kind": "PersistentVolume", "metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}


def volume_name(index: int) -> str:
    """Return the name of a volume."""
    return f"pvc-{index:08}-0000-4000-8000-000000000001"


def _claim_reference(index: int) -> Json:
    uid = f"{index:08}-0000-4000-8000-000000000001"
    return {"name": f"data-work-{index:06}", "namespace": f"team-{index % NAMESPACES}", "uid": uid}


def attachment(index: int) -> Json:
    """Return the attachment of a volume to the node of its pod."""
    source = {"persistentVolumeName": volume_name(index)}
    spec = {"attacher": DRIVER, "nodeName": node_name(index % GPU_NODES), "source": source}
    return {"kind": "VolumeAttachment", "metadata": {"name": f"csi-{index:064}", "resourceVersion": "1"}, "spec": spec}


def csi_node(index: int) -> Json:
    """Return what the CSI drivers of a node report."""
    drivers = [
        {"name": name, "nodeID": f"i-{index:017}", "topologyKeys": [ZONE_KEY], "allocatable": {"count": 26}}
        for name in (DRIVER, "efs.csi.aws.com")
    ]
    metadata = {"name": node_name(index), "resourceVersion": "1"}
    return {"kind": "CSINode", "metadata": metadata, "spec": {"drivers": drivers}}


STORAGE = {
    "persistentvolumeclaims": (claim, CLAIMS),
    "persistentvolumes": (volume, CLAIMS),
    "volumeattachments": (attachment, CLAIMS),
    "csinodes": (csi_node, NODES),
}
"""How many objects of each kind there are, and how each is made."""


def pod_template(gpus: int, *, with_claim: bool = False) -> list[bytes]:
    """Return a bound, running pod as an API server sends it, split where its own values go, such as name and claim."""
    amounts = {"cpu": "4", "memory": "16Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    env = [{"name": f"SETTING_{i}", "value": "x" * 24} for i in range(16)]
    container = {"name": "main", "image": "registry.example/app:1", "env": env}
    pod = as_stored(
        {
            "metadata": {"name": MARK, "generateName": "work-5d9c7b-", "labels": {"app": "work"}},
            "spec": {"containers": [{**container, "resources": {"limits": amounts, "requests": amounts}}]},
        },
        MARK,
    )
    pod["metadata"] = {"name": MARK, "resourceVersion": MARK, "uid": MARK, **pod["metadata"]}
    if with_claim:
        pod["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": MARK}})
    pod["spec"]["nodeName"] = MARK
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "Initialized", "PodScheduled")]
    pod["status"] = {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.1"}
    return json.dumps(pod, separators=(",", ":")).encode().split(MARK.encode())


class Cluster:
    """The objects and their watchers."""

    def __init__(self) -> None:
        self._templates = [pod_template(0), pod_template(1), pod_template(1, with_claim=True)]
        self._listed: dict[str, list[bytes]] = {}
        self.rate = 0
        self.version = 10
        self.expired = asyncio.Event()

    def pod(self, index: int) -> bytes:
        """Return one pod as JSON. The first ones have a GPU and a claim, and as many fit on each GPU node."""
        claims, gpus = [f"data-work-{index:06}"] if index < CLAIMS else [], index < GPU_PODS
        place = index % GPU_NODES if gpus else index % NODES
        facts = [f"work-5d9c7b-{index:06}", str(self.version), f"{index:08}-0000-4000-8000-000000000000"]
        values = [*facts, f"team-{index % NAMESPACES}", *claims, node_name(place)]
        return self._fill(self._templates[gpus + len(claims)], values)

    def _fill(self, template: list[bytes], values: list[str]) -> bytes:
        """Fill in the values; their order is that of the keys in `pod_template`."""
        head, *rest = template
        return head + b"".join(value.encode() + part for value, part in zip(values, rest, strict=True))

    def everything(self, kind: str) -> Iterator[bytes]:
        """Yield every object of a kind as JSON."""
        if kind == "pods":
            yield from map(self.pod, range(PODS))
        elif kind == "nodes":
            yield from (json.dumps(node(index)).encode() for index in range(NODES))
        elif kind in STORAGE:
            make, count = STORAGE[kind]
            yield from (json.dumps(make(index)).encode() for index in range(count))
        elif kind == "namespaces":
            for index in range(NAMESPACES):
                yield json.dumps({"metadata": {"name": f"team-{index}", "resourceVersion": "1"}}).encode()

    def listed(self, kind: str) -> list[bytes]:
        """Return every object of a kind, cached, because a list is requested page by page."""
        if kind not in self._listed:
            self._listed[kind] = list(self.everything(kind))
        return self._listed[kind]


class Watch:
    """A connected watch."""

    def __init__(self, cluster: Cluster, kind: str, response: web.StreamResponse) -> None:
        self._cluster, self._kind, self._response = cluster, kind, response

    async def initial(self) -> None:
        """Send every object, and the bookmark that ends the initial events."""
        batch = []
        for item in self._cluster.everything(self._kind):
            batch.append(line(b"ADDED", item))
            if len(batch) == BATCH:
                await self._response.write(b"".join(batch))
                batch = []
        end = {"resourceVersion": str(self._cluster.version), "annotations": {"k8s.io/initial-events-end": "true"}}
        batch.append(line(b"BOOKMARK", json.dumps({"metadata": end}).encode()))
        await self._response.write(b"".join(batch))

    async def follow(self, seconds: float) -> None:
        """Send changes at the given rate until the timeout of the client, then a bookmark."""
        loop = asyncio.get_running_loop()
        end, index, owed = loop.time() + seconds, 0, 0.0
        expired = self._cluster.expired
        while loop.time() < end:
            await asyncio.sleep(TICK_SECONDS)
            if expired.is_set():
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                await self._response.write(line(b"ERROR", json.dumps(gone).encode()))
                return
            owed += self._cluster.rate * TICK_SECONDS if self._kind == "pods" else 0
            if owed >= 1:
                await self._response.write(b"".join(self._change(index + i) for i in range(int(owed))))
                index, owed = index + int(owed), owed % 1
        await self._response.write(line(b"BOOKMARK", json.dumps({"metadata": {"resourceVersion": "10"}}).encode()))

    def _change(self, index: int) -> bytes:
        """Return an event that ends or starts a GPU pod; each one changes the free GPUs of a node."""
        self._cluster.version += 1
        pod = (index // 2) * 7919 % GPU_PODS
        return line(b"DELETED" if index % 2 == 0 else b"ADDED", self._cluster.pod(pod))


def line(kind: bytes, item: bytes) -> bytes:
    """Return one watch event."""
    return b'{"type":"' + kind + b'","object":' + item + b"}\n"


def application(cluster: Cluster) -> web.Application:
    """Return the routes."""

    async def watch(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return page(cluster, request)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        one = Watch(cluster, request.match_info["kind"], response)
        with suppress(ConnectionError):  # a client may leave
            if "sendInitialEvents" in request.query:
                await one.initial()
            await one.follow(float(request.query["timeoutSeconds"]))
        return response

    async def rate(request: web.Request) -> web.Response:
        cluster.rate = int(request.match_info["rate"])
        return web.Response()

    async def expire(_request: web.Request) -> web.Response:
        cluster.expired.set()
        await asyncio.sleep(TICK_SECONDS * 5)
        cluster.expired.clear()
        return web.Response()

    app = web.Application()
    app.router.add_get("/api/v1/{kind}", watch)
    app.router.add_get("/apis/storage.k8s.io/v1/{kind}", watch)
    app.router.add_post("/rate/{rate}", rate)
    app.router.add_post("/expire", expire)
    return app


def page(cluster: Cluster, request: web.Request) -> web.Response:
    """Return one page of a list; the continue token is an index."""
    kind, limit = request.match_info["kind"], int(request.query["limit"])
    start = int(request.query.get("continue", "0"))
    if kind == "pods":
        items = [cluster.pod(index) for index in range(start, min(PODS, start + limit))]
        more = str(start + limit) if start + limit < PODS else ""
    else:
        every = cluster.listed(kind)
        items, more = every[start : start + limit], str(start + limit) if start + limit < len(every) else ""
    head = json.dumps({"resourceVersion": "10", "continue": more}).encode()
    body = b'{"kind":"List","apiVersion":"v1","metadata":' + head + b',"items":[' + b",".join(items) + b"]}"
    return web.Response(body=body, content_type="application/json")


async def serve(folder: Path) -> None:
    """Serve on a free loopback port with the certificate in a folder, and write the port to `port` there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    runner = web.AppRunner(application(Cluster()))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    (folder / "port").write_text(str(runner.addresses[0][1]))
    await asyncio.Event().wait()


def run() -> None:
    """Serve until killed; `benchmarks.live` runs this in its own process."""
    uvloop.run(serve(Path(sys.argv[1])))
