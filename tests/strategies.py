"""Hypothesis strategies for Pods, as JSON that an API server could send, and worse.

`pods()` generates valid shapes with relevant names, values and amounts among any text; `odd_pods()` also breaks shapes,
so that parsing a Pod may fail, but nothing after it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

TEXT = st.text(max_size=20)
ENV_NAMES = st.sampled_from(
    [
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_DISABLE_REQUIRE",
        "NVIDIA_REQUIRE_CUDA",
        "CUDA_VERSION",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PATH",
    ]
)
ENV_VALUES = st.sampled_from(["", "all", "void", "none", "0", "true", "compute,utility", "/usr/lib:/tmp", "cuda>=12.4"])
RESOURCE_NAMES = st.sampled_from(
    [
        "cpu",
        "memory",
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-3g.40gb.me",
        "nvidia.com/mig-",
        "amd.com/gpu",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        "rightslice.dev/gpu-milli",
    ]
)
AMOUNTS = st.sampled_from(
    ["0", "1", "2", "8", "500m", "8Gi", "0.5", "1k", "1e3", "-1", "", "many", "9" * 80, 1, 0, 2.5]
)
HOST_PATHS = st.sampled_from(
    ["/", "/dev", "/dev/nvidia0", "/devices", "/data", "//dev/../dev/dri", "/var/run/cdi", "dev"]
)
MOUNT_PATHS = st.sampled_from(["/data", "/var/run/nvidia-container-devices/all", "/dev", "/x/../var/run"])
ANNOTATIONS = st.sampled_from(
    [
        "rightslice.dev/keep",
        "rightslice.dev/gpu-memory",
        "rightslice.dev/gpu-compute",
        "rightslice.dev/cuda",
        "rightslice.dev/decision",
        "rightslice.dev/original-resources",
        "kubernetes.io/config.mirror",
        "cdi.k8s.io/x",
        "nvidia.cdi.k8s.io/container.main",
        "example.com/a",
    ]
)
ANNOTATION_VALUES = st.sampled_from(
    [
        "true",
        "8Gi",
        "20%",
        "12.4",
        ">=12.x",
        "[" * 50,
        '{"policies":["p"],"digest":"0123456789ab","changed":[]}',
        '{"main":{"limits":{"nvidia.com/gpu":"1"}}}',
    ]
)
IMAGES = st.sampled_from(["example/app:1", "nvidia/cuda:12.4.1-base", "x:cu128", "x@sha256:0", "", "a:b:c"])


def objects(required: Json | None = None, /, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """Draw a map with these keys always, and any of those."""
    return st.fixed_dictionaries(required or {}, optional=optional)


def amounts() -> st.SearchStrategy[Json]:
    """Draw amounts by resource name."""
    return st.dictionaries(RESOURCE_NAMES, AMOUNTS, max_size=4)


def variables() -> st.SearchStrategy[Json]:
    """Draw environment variables, guarded ones among them."""
    source = st.just({"configMapKeyRef": {"name": "c", "key": "k"}})
    return objects({"name": ENV_NAMES | TEXT}, value=ENV_VALUES | TEXT, valueFrom=source)


def contexts() -> st.SearchStrategy[Json]:
    """Draw security contexts."""
    names = st.lists(
        st.sampled_from(["SYS_ADMIN", "cap_sys_admin", "ALL", "SYS_RAWIO", "SYS_PTRACE", "NET_ADMIN", ""]), max_size=2
    )
    return objects(
        privileged=st.booleans(),
        allowPrivilegeEscalation=st.booleans(),
        capabilities=objects(add=names, drop=names),
    )


def containers() -> st.SearchStrategy[Json]:
    """Draw containers of any kind."""
    return objects(
        {"name": st.sampled_from(["main", "side", "other"]) | TEXT},
        image=IMAGES | TEXT,
        resources=objects(limits=amounts(), requests=amounts(), claims=st.just([{"name": "gpu"}])),
        env=st.lists(variables(), max_size=4),
        envFrom=st.lists(
            objects(prefix=st.sampled_from(["", "APP_", "NVIDIA_", "CUDA_"]), secretRef=st.just({})), max_size=2
        ),
        securityContext=contexts(),
        volumeMounts=st.lists(objects({"name": TEXT, "mountPath": MOUNT_PATHS | TEXT}, subPath=TEXT), max_size=2),
        restartPolicy=st.just("Always"),
    )


def tolerations() -> st.SearchStrategy[Json]:
    """Draw tolerations, valid and invalid."""
    return objects(
        key=st.sampled_from(["nvidia.com/gpu", "sku", ""]),
        operator=st.sampled_from(["Exists", "Equal", ""]),
        value=st.sampled_from(["present", "gpu", ""]),
        effect=st.sampled_from(["NoSchedule", "NoExecute", ""]),
        tolerationSeconds=st.integers(0, 10),
    )


def affinities() -> st.SearchStrategy[Json]:
    """Draw node affinities, with empty terms and odd operators too."""
    expression = objects(
        {"key": st.sampled_from(["nvidia.com/gpu.product", "nvidia.com/gpu.memory", "a"])},
        operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Other"]),
        values=st.lists(st.sampled_from(["NVIDIA-A100-SXM4-80GB", "Tesla-T4", "16000", "x"]), max_size=2),
    )
    term = objects(matchExpressions=st.lists(expression, max_size=2), matchFields=st.lists(expression, max_size=1))
    required = objects(nodeSelectorTerms=st.lists(term, max_size=2))
    return objects(nodeAffinity=objects(requiredDuringSchedulingIgnoredDuringExecution=required))


def specs() -> st.SearchStrategy[Json]:
    """Draw pod specs."""
    return objects(
        {"containers": st.lists(containers(), max_size=3)},
        initContainers=st.lists(containers(), max_size=2),
        ephemeralContainers=st.lists(containers(), max_size=2),
        volumes=st.lists(objects({"name": TEXT}, hostPath=objects(path=HOST_PATHS | TEXT)), max_size=2),
        nodeSelector=st.dictionaries(st.sampled_from(["nvidia.com/gpu.product", "a"]), TEXT, max_size=2),
        affinity=affinities(),
        tolerations=st.lists(tolerations(), max_size=2),
        runtimeClassName=st.sampled_from(["nvidia", "nvidia-cdi", "gvisor", ""]),
        hostPID=st.booleans(),
        hostIPC=st.booleans(),
        hostUsers=st.booleans(),
        shareProcessNamespace=st.booleans(),
        nodeName=st.sampled_from(["", "node-1"]),
        resourceClaims=st.just([{"name": "gpu", "resourceClaimName": "x"}]),
        resources=objects(limits=amounts(), requests=amounts()),
        overhead=st.dictionaries(st.sampled_from(["cpu", "memory"]), AMOUNTS, max_size=1),
        schedulingGates=st.just([{"name": "g"}]),
        priorityClassName=TEXT,
        activeDeadlineSeconds=st.integers(0, 100),
    )


def metadata() -> st.SearchStrategy[Json]:
    """Draw object metadata, with our annotations among others."""
    return objects(
        name=TEXT,
        generateName=TEXT,
        namespace=st.just("team"),
        labels=st.dictionaries(TEXT, TEXT, max_size=2),
        annotations=st.dictionaries(ANNOTATIONS | TEXT, ANNOTATION_VALUES | TEXT, max_size=3),
        ownerReferences=st.lists(
            objects(kind=st.sampled_from(["ReplicaSet", "DaemonSet", "Job"]), name=TEXT, controller=st.booleans()),
            max_size=1,
        ),
    )


def pods() -> st.SearchStrategy[Json]:
    """Draw pods that can be parsed."""
    return objects({"metadata": metadata(), "spec": specs()}, apiVersion=st.just("v1"), kind=st.just("Pod"))


def anything() -> st.SearchStrategy[Any]:
    """Draw any small JSON value."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@st.composite
def odd_pods(draw: st.DrawFn) -> Json:
    """Draw pods with one part replaced by any JSON."""
    pod = draw(pods())
    part = draw(st.sampled_from(["metadata", "spec", *pod["spec"]]))
    if part in pod:
        pod[part] = draw(anything())
    else:
        pod["spec"][part] = draw(anything())
    return pod
