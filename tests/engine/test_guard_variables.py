"""guard: variables that take more than was requested, each with a harmless twin."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.engine.guarding import KINDS, look, names, places
from tests.make import make_pod


class Variable(NamedTuple):
    name: str
    bad: str
    fine: str
    bypass: str


VARIABLES = {
    "all GPUs by variable": Variable("NVIDIA_VISIBLE_DEVICES", "all", "void", "visibleDevicesEnv"),
    "one GPU by index": Variable("NVIDIA_VISIBLE_DEVICES", "0", "none", "visibleDevicesEnv"),
    "a value that another variable makes": Variable("NVIDIA_VISIBLE_DEVICES", "$(GPUS)", "", "visibleDevicesEnv"),
    "void with something behind it": Variable("NVIDIA_VISIBLE_DEVICES", "void,0", "void", "visibleDevicesEnv"),
    "none in capitals is not none": Variable("NVIDIA_VISIBLE_DEVICES", "None", "none", "visibleDevicesEnv"),
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
    "libraries through a step up": Variable("LD_LIBRARY_PATH", "/usr/../tmp", "/usr/lib/", "loaderEnv"),
    "libraries from a variable": Variable("LD_LIBRARY_PATH", "/usr/$(X)", "/lib64", "loaderEnv"),
    "another MPS server": Variable("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps", "", "mpsEnv"),
    "an MPS variable still to come": Variable("CUDA_MPS_SOMETHING_NEW", "1", "", "mpsEnv"),
    "devices by hand": Variable("CUDA_VISIBLE_DEVICES", "3", "-1", "cudaVisibleDevicesEnv"),
}
"""What is refused beside a GPU request, each with the same variable saying something harmless."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", VARIABLES.values(), ids=VARIABLES)
def test_a_guarded_variable(case: Variable, kind: str) -> None:
    env = [{"name": "OTHER", "value": "all"}, {"name": case.name, "value": case.bad}]
    pod = make_pod().gpus(1).container("beside", kind=kind, env=env)
    found = look(pod.build())
    place = 1 if kind == "containers" else 0
    assert places(found) == [(case.bypass, f"spec.{kind}[{place}].env[1]")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case",
    [case for case in VARIABLES.values() if case.bypass != "mpsEnv"],
    ids=lambda case: f"{case.name}={case.fine}",
)
def test_a_guarded_variable_that_gives_nothing_away(case: Variable, kind: str) -> None:
    pod = make_pod().gpus(1).container("beside", kind=kind, env=[{"name": case.name, "value": case.fine}])
    assert look(pod.build()) == []


@pytest.mark.parametrize("case", {case.name: case for case in VARIABLES.values()}.values(), ids=lambda case: case.name)
def test_a_value_from_elsewhere_counts_as_the_worst(case: Variable) -> None:
    source = {"name": case.name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    found = look(make_pod().gpus(1).container("beside", env=[source]).build())
    assert names(found) == [case.bypass]
    assert "valueFrom" in found[0][1].message


def test_the_bad_one_of_two_equal_names_is_reported_whichever_comes_last() -> None:
    first, second = ("all", "void"), ("void", "all")
    for values in (first, second):
        pod = make_pod().gpus(1)
        for value in values:
            pod.env("NVIDIA_VISIBLE_DEVICES", value)
        found = look(pod.build())
        assert [remark.path[-1] for _, remark in found] == [values.index("all")]


ORDINARY_VARIABLES = {
    "an API key of NVIDIA's cloud": ("NVIDIA_API_KEY", "x"),
    "lower case is another variable": ("nvidia_visible_devices", "all"),
    "a longer name": ("NVIDIA_VISIBLE_DEVICES_COUNT", "all"),
    "a fraction that a library reads": ("CUDA_MEMORY_FRACTION", "0.9"),
    "no name at all": ("", "all"),
}


@pytest.mark.parametrize("variable", ORDINARY_VARIABLES.values(), ids=ORDINARY_VARIABLES)
def test_a_variable_that_only_looks_alike(variable: tuple[str, str]) -> None:
    assert look(make_pod().gpus(1).env(*variable).build()) == []


CAPABILITIES = {
    "the one that is allowed": ("compute,video", {"video"}, []),
    "another one": ("compute,graphics", {"video"}, ["driverCapabilitiesEnv"]),
    "all of them, where one is allowed": ("all", {"video"}, ["driverCapabilitiesEnv"]),
    "any, where all are allowed": ("graphics,display", {"all"}, []),
}


@pytest.mark.parametrize(("value", "allowed", "want"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_driver_capabilities_that_the_policy_allows(value: str, allowed: set[str], want: list[str]) -> None:
    pod = make_pod().gpus(1).env("NVIDIA_DRIVER_CAPABILITIES", value).build()
    assert names(look(pod, allowed_capabilities=frozenset(allowed))) == want


SOURCES = {
    "a prefix that begins the name of a variable of GPUs": ("NVIDIA_VISIBLE_DEV", True),
    "a prefix of all of NVIDIA's variables": ("NVIDIA_", True),
    "a prefix of one letter": ("N", True),
    "a prefix of CUDA's": ("CUDA_", True),
    "a prefix that goes on after CUDA_MPS_": ("CUDA_MPS_PIPE_", True),
    "a prefix of NVIDIA's that no such name has": ("NVIDIA_API_", False),
    "a prefix that begins the loader's variables": ("LD_", False),
    "a prefix of its own": ("APP_", False),
    "no prefix": ("", False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prefix", "bad"), SOURCES.values(), ids=SOURCES)
def test_a_source_of_variables_in_a_pod_without_gpus(prefix: str, bad: bool, kind: str) -> None:
    source = {"prefix": prefix, "configMapRef": {"name": "c"}}
    pod = make_pod().container("beside", kind=kind, envFrom=[source]).build()
    assert names(look(pod)) == (["unreadableEnv"] if bad else [])
