"""guard: environment variables that grant more than was requested, each with a harmless counterpart."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.engine.guard_violations import KINDS, find_violations, names, places


class Variable(NamedTuple):
    name: str
    bad: str
    fine: str
    bypass: str


VARIABLES = {
    "all GPUs by variable": Variable("NVIDIA_VISIBLE_DEVICES", "all", "void", "visibleDevicesEnv"),
    "one GPU by index": Variable("NVIDIA_VISIBLE_DEVICES", "0", "none", "visibleDevicesEnv"),
    "a value from another variable": Variable("NVIDIA_VISIBLE_DEVICES", "$(GPUS)", "", "visibleDevicesEnv"),
    "void with a suffix": Variable("NVIDIA_VISIBLE_DEVICES", "void,0", "void", "visibleDevicesEnv"),
    "NONE in capitals is not none": Variable("NVIDIA_VISIBLE_DEVICES", "None", "none", "visibleDevicesEnv"),
    "IMEX channels": Variable("NVIDIA_IMEX_CHANNELS", "0", "", "imexChannelsEnv"),
    "MIG configuration": Variable("NVIDIA_MIG_CONFIG_DEVICES", "all", "", "migManagementEnv"),
    "MIG monitor": Variable("NVIDIA_MIG_MONITOR_DEVICES", "all", "", "migManagementEnv"),
    "requirement checks off": Variable("NVIDIA_DISABLE_REQUIRE", "true", "false", "disableRequireEnv"),
    "requirement checks off, as a number": Variable("NVIDIA_DISABLE_REQUIRE", "1", "0", "disableRequireEnv"),
    "graphics libraries": Variable(
        "NVIDIA_DRIVER_CAPABILITIES", "compute,graphics", "utility, compute", "driverCapabilitiesEnv"
    ),
    "all driver libraries": Variable("NVIDIA_DRIVER_CAPABILITIES", "all", "compute", "driverCapabilitiesEnv"),
    "a preloaded library": Variable("LD_PRELOAD", "/proc/self/cwd/x.so", "", "loaderEnv"),
    "an audit library": Variable("LD_AUDIT", "x.so", "", "loaderEnv"),
    "libraries from a writable folder": Variable(
        "LD_LIBRARY_PATH", "/usr/lib:/tmp", "/usr/local/nvidia/lib64:/opt/x", "loaderEnv"
    ),
    "libraries from the working folder": Variable("LD_LIBRARY_PATH", "/usr/lib:", "/usr/lib", "loaderEnv"),
    "libraries through a parent folder": Variable("LD_LIBRARY_PATH", "/usr/../tmp", "/usr/lib/", "loaderEnv"),
    "libraries from a variable": Variable("LD_LIBRARY_PATH", "/usr/$(X)", "/lib64", "loaderEnv"),
    "another MPS server": Variable("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", "", "mpsEnv"),
    "an unknown MPS variable": Variable("CUDA_MPS_SOMETHING_NEW", "1", "", "mpsEnv"),
    "NVSwitch devices": Variable("NVIDIA_NVSWITCH", "enabled", "disabled", "extraDevicesEnv"),
    "RDMA devices": Variable("NVIDIA_MOFED", "$(ON)", "1", "extraDevicesEnv"),
    "GPUDirect Storage without a GPU": Variable("NVIDIA_GDS", "enabled", "", "extraDevicesEnv"),
    "GDRCopy without a GPU": Variable("NVIDIA_GDRCOPY", "enabled", "1", "extraDevicesEnv"),
    "devices chosen by the user": Variable("CUDA_VISIBLE_DEVICES", "3", "-1", "cudaVisibleDevicesEnv"),
}
"""Variables rejected with a GPU request, each with a harmless value."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", VARIABLES.values(), ids=VARIABLES)
def test_a_guarded_variable(case: Variable, kind: str) -> None:
    env = [{"name": "OTHER", "value": "all"}, {"name": case.name, "value": case.bad}]
    pod = make_pod().gpus(1).container("other", kind=kind, env=env)
    found = find_violations(pod.build())
    place = 1 if kind == "containers" else 0
    assert places(found) == [(case.bypass, f"spec.{kind}[{place}].env[1]")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case",
    [case for case in VARIABLES.values() if case.bypass != "mpsEnv"],
    ids=lambda case: f"{case.name}={case.fine}",
)
def test_a_guarded_variable_with_a_harmless_value(case: Variable, kind: str) -> None:
    pod = make_pod().gpus(1).container("other", kind=kind, env=[{"name": case.name, "value": case.fine}])
    assert find_violations(pod.build()) == []


@pytest.mark.parametrize("case", {case.name: case for case in VARIABLES.values()}.values(), ids=lambda case: case.name)
def test_an_unreadable_value_is_a_bypass(case: Variable) -> None:
    source = {"name": case.name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    found = find_violations(make_pod().gpus(1).container("other", env=[source]).build())
    assert names(found) == [case.bypass]
    assert "valueFrom" in found[0][1].message


def test_the_harmful_one_of_two_equal_names_is_reported_in_either_order() -> None:
    first, second = ("all", "void"), ("void", "all")
    for values in (first, second):
        pod = make_pod().gpus(1)
        for value in values:
            pod.env("NVIDIA_VISIBLE_DEVICES", value)
        found = find_violations(pod.build())
        assert [finding.path[-1] for _, finding in found] == [values.index("all")]


FROM_ELSEWHERE = {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}
VERSION = {"name": "CUDA_VERSION", "value": "12.4.1"}
LEGACY = {
    "alone": ([VERSION], True),
    "from elsewhere": ([{"name": "CUDA_VERSION", "valueFrom": FROM_ELSEWHERE}], True),
    "a value from another variable": ([{"name": "CUDA_VERSION", "value": "$(V)"}], True),
    "with requirements of another kind": ([VERSION, {"name": "NVIDIA_REQUIRE_DRIVER", "value": "driver>=535"}], True),
    "with empty requirements": ([VERSION, {"name": "NVIDIA_REQUIRE_CUDA", "value": ""}], True),
    "with requirements whose source may be absent": (
        [VERSION, {"name": "NVIDIA_REQUIRE_CUDA", "valueFrom": FROM_ELSEWHERE}],
        True,
    ),
    "with requirements that may be empty": ([VERSION, {"name": "NVIDIA_REQUIRE_CUDA", "value": "$(R)"}], True),
    "with requirements that are emptied later": (
        [VERSION, {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12"}, {"name": "NVIDIA_REQUIRE_CUDA", "value": ""}],
        True,
    ),
    "with requirements": ([VERSION, {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12"}], False),
    "with void": ([VERSION, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}], False),
    "with none, which is listed first": ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}, VERSION], False),
    "with an empty list of devices": ([VERSION, {"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}], False),
    "empty": ([{"name": "CUDA_VERSION", "value": ""}], False),
    "set and then emptied": ([VERSION, {"name": "CUDA_VERSION", "value": ""}], False),
}
"""CUDA_VERSION in a container without a GPU, and whether the container toolkit gives that container every GPU."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("env", "bad"), LEGACY.values(), ids=LEGACY)
def test_a_cuda_version_that_selects_every_gpu(env: list[Json], bad: bool, kind: str) -> None:
    found = find_violations(make_pod().container("other", kind=kind, env=env).build())
    place = 1 if kind == "containers" else 0
    at = next(i for i, variable in enumerate(env) if variable["name"] == "CUDA_VERSION")
    assert places(found) == ([("visibleDevicesEnv", f"spec.{kind}[{place}].env[{at}]")] if bad else [])


def test_devices_of_one_container_do_not_count_for_another() -> None:
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    pod = make_pod().container("first", env=[void]).container("second", env=[VERSION]).build()
    assert places(find_violations(pod)) == [("visibleDevicesEnv", "spec.containers[2].env[0]")]


def test_wrong_devices_are_reported_once() -> None:
    devices = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    pod = make_pod().container("other", env=[VERSION, devices]).build()
    assert places(find_violations(pod)) == [("visibleDevicesEnv", "spec.containers[1].env[1]")]


ASKING = {
    "for a GPU": {"limits": {"nvidia.com/gpu": "1"}},
    "for a slice": {"limits": {"nvidia.com/mig-1g.10gb": "1"}},
    "for a share": {"limits": {"nvidia.com/gpu.shared": "1"}},
}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize("resources", ASKING.values(), ids=ASKING)
def test_a_container_with_a_gpu_request_may_set_cuda_version(resources: Json, kind: str) -> None:
    assert find_violations(make_pod().container("asks", kind=kind, resources=resources, env=[VERSION]).build()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("env", "bad"), LEGACY.values(), ids=LEGACY)
def test_the_request_of_one_container_does_not_count_for_another(env: list[Json], bad: bool, kind: str) -> None:
    found = find_violations(make_pod().gpus(1).container("other", kind=kind, env=env).build())
    assert names(found) == (["visibleDevicesEnv"] if bad else [])


def test_an_ephemeral_container_with_a_cuda_version() -> None:
    old = make_pod().build()
    new = make_pod().container("debug", kind="ephemeralContainers", env=[VERSION]).build()
    assert places(find_violations(new, old=old)) == [("visibleDevicesEnv", "spec.ephemeralContainers[0].env[0]")]
    assert find_violations(new, old=new) == []


def test_an_ephemeral_container_with_a_cuda_version_in_a_gpu_pod() -> None:
    old = make_pod().gpus(1).env("CUDA_VERSION", "12.4.1").build()
    new = make_pod().gpus(1).env("CUDA_VERSION", "12.4.1")
    new.container("debug", kind="ephemeralContainers", env=[VERSION])
    assert places(find_violations(new.build(), old=old)) == [
        ("visibleDevicesEnv", "spec.ephemeralContainers[0].env[0]")
    ]


ORDINARY_VARIABLES = {
    "an API key of NVIDIA's cloud": ("NVIDIA_API_KEY", "x"),
    "lower case is another variable": ("nvidia_visible_devices", "all"),
    "a longer name": ("NVIDIA_VISIBLE_DEVICES_COUNT", "all"),
    "a fraction that a library reads": ("CUDA_MEMORY_FRACTION", "0.9"),
    "an empty name": ("", "all"),
}


@pytest.mark.parametrize("variable", ORDINARY_VARIABLES.values(), ids=ORDINARY_VARIABLES)
def test_a_similar_variable(variable: tuple[str, str]) -> None:
    assert find_violations(make_pod().gpus(1).env(*variable).build()) == []


CAPABILITIES = {
    "the one that is allowed": ("compute,video", {"video"}, []),
    "another one": ("compute,graphics", {"video"}, ["driverCapabilitiesEnv"]),
    "all of them, if one is allowed": ("all", {"video"}, ["driverCapabilitiesEnv"]),
    "any, if all are allowed": ("graphics,display", {"all"}, []),
}


@pytest.mark.parametrize(("value", "allowed", "want"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_driver_capabilities_that_the_policy_allows(value: str, allowed: set[str], want: list[str]) -> None:
    pod = make_pod().gpus(1).env("NVIDIA_DRIVER_CAPABILITIES", value).build()
    assert names(find_violations(pod, allowed_capabilities=frozenset(allowed))) == want


SOURCES = {
    "a prefix that begins the name of a variable of GPUs": ("NVIDIA_VISIBLE_DEV", True),
    "a prefix of all of NVIDIA's variables": ("NVIDIA_", True),
    "a prefix of one letter": ("N", True),
    "a prefix of CUDA's": ("CUDA_", True),
    "a prefix that begins CUDA_VERSION": ("CUDA_VERS", True),
    "a prefix that starts with CUDA_MPS_": ("CUDA_MPS_PIPE_", True),
    "a prefix of NVIDIA's that no guarded name starts with": ("NVIDIA_API_", False),
    "a prefix that begins the loader's variables": ("LD_", False),
    "a prefix of its own": ("APP_", False),
    "no prefix": ("", False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prefix", "bad"), SOURCES.values(), ids=SOURCES)
def test_a_source_of_variables_in_a_pod_without_gpus(prefix: str, bad: bool, kind: str) -> None:
    source = {"prefix": prefix, "configMapRef": {"name": "c"}}
    pod = make_pod().container("other", kind=kind, envFrom=[source]).build()
    assert names(find_violations(pod)) == (["unreadableEnv"] if bad else [])


FEATURES = {
    "GPUDirect Storage of an own GPU": ("NVIDIA_GDS", make_pod().gpus(1), []),
    "GDRCopy of an own GPU": ("NVIDIA_GDRCOPY", make_pod().gpus(1), []),
    "GDRCopy of a vGPU": ("NVIDIA_GDRCOPY", make_pod().requests("nvidia.com/vgpu-x", 1), []),
    "NVSwitch of an own GPU": ("NVIDIA_NVSWITCH", make_pod().gpus(8), ["extraDevicesEnv"]),
    "RDMA with an own GPU": ("NVIDIA_MOFED", make_pod().gpus(8), ["extraDevicesEnv"]),
    "GDRCopy without a GPU": ("NVIDIA_GDRCOPY", make_pod(), ["extraDevicesEnv"]),
}


@pytest.mark.parametrize(("name", "pod", "expected"), FEATURES.values(), ids=FEATURES)
def test_devices_of_a_driver_feature(name: str, pod: PodMaker, expected: list[str]) -> None:
    assert names(find_violations(pod.env(name, "enabled").build())) == expected
