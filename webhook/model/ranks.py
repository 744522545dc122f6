"""Numbers of ranks that a pod's program and variables state: it is one of several workers if there is more than one.

A number that is stated and cannot be read here (`valueFrom`, a shell variable) counts as several. `$(NAME)` is expanded
as the kubelet does.

Sources: torchrun, accelerate, JAX, TensorFlow (`TF_CONFIG`), Slurm, Open MPI, Horovod, Ray, vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from webhook.model.node_labels import parse_count
from webhook.model.pods import Container, Pod, expand_references

NODES_VARIABLE = "PET_NNODES"
"""The number of pods that torchrun waits for; training operators set it."""

RANK_VARIABLES = frozenset(
    {
        NODES_VARIABLE,
        "NNODES",
        "WORLD_SIZE",
        "JAX_NUM_PROCESSES",
        "SLURM_NTASKS",
        "SLURM_NNODES",
        "OMPI_COMM_WORLD_SIZE",
    }
)
"""Variables with the number of pods of a job whose pods have one GPU each."""

INDEX_VARIABLES = frozenset({"NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "RANK", "JAX_PROCESS_ID", "SLURM_PROCID"})
"""Variables with the number of this pod among them, from 0."""

CLUSTER_VARIABLE = "TF_CONFIG"
"""The addresses of all workers; only distributed TensorFlow has it."""

NODE_FLAGS = frozenset({"--nnodes", "--num-machines", "--num-nodes"})
"""Flags of torchrun, accelerate and others with the number of pods of a job; "1:8" for an elastic one."""

INDEX_FLAGS = frozenset({"--node-rank", "--machine-rank"})
"""Flags of the same programs with the number of this pod, from 0."""

PARALLEL_FLAGS = frozenset(
    {
        *("--tensor-parallel-size", "-tp", "--tp", "--tp-size"),
        *("--pipeline-parallel-size", "-pp", "--pp-size"),
        *("--data-parallel-size", "-dp", "--dp-size"),
    }
)
"""Flags of inference servers with the number of GPUs of one model or of its copies, at least one for each rank."""

LAUNCHERS = frozenset({"mpirun", "mpiexec", "horovodrun", "srun"})
"""Programs that start several ranks, as many as `LAUNCH_FLAGS` say."""

LAUNCH_FLAGS = frozenset({"-np", "-n", "--np", "--ntasks"})

SEVERAL = 2
"""Stands for a number that cannot be read."""

MAX_RANKS = 100_000
"""A larger number counts as unreadable."""

_PARTS = ("nnodes", "-num", "parallel", "-tp", "-pp", "-dp", "rank", "mpi", "horovodrun", "srun", "ray ")
_SHELL_WORD = re.compile(r"[^\s;&|'\"()]+")
_LONGEST_TEXT = 65_536


def stated_ranks(pod: Pod) -> list[tuple[str, int]]:
    """Return the numbers of ranks that variables and commands state, each with its text."""
    return [found for container in pod.spec.containers for found in _ranks_of_container(container)]


def states_one_pod(sign: str) -> bool:
    """Return whether a sign with the number 1 says that the pod is the only one of its job."""
    return sign.partition("=")[0] in RANK_VARIABLES | NODE_FLAGS


def parse_ranks(text: str) -> int:
    """Return a number of ranks, the largest of a range such as "1:8"; `SEVERAL` if it cannot be read."""
    found = parse_count(text.rpartition(":")[2])
    return found if found is not None and 0 < found <= MAX_RANKS else SEVERAL


def _ranks_of_container(container: Container) -> Iterator[tuple[str, int]]:
    values: dict[str, str] = {}
    for env in container.env:
        value = expand_references(env.value, values)
        values[env.name] = value
        if env.name in RANK_VARIABLES:
            yield (f"{env.name}={value}", parse_ranks(value)) if env.value_from is None else (env.name, SEVERAL)
        elif (env.name in INDEX_VARIABLES and value != "0") or env.name == CLUSTER_VARIABLE:
            yield env.name, SEVERAL
    command = container.command + container.args
    text = " ".join(command)
    if any(part in text for part in _PARTS):
        yield from _ranks_in_command([expand_references(each[:_LONGEST_TEXT], values) for each in command])


def _ranks_in_command(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    words = [word for text in command for word in _SHELL_WORD.findall(text) if word != "\\"]
    launcher = next((name for word in words if (name := word.rpartition("/")[2]) in LAUNCHERS), "")
    launched = 0
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, separator, value = word.partition("=")
        flag, value = name.replace("_", "-"), value if separator else following
        if flag in NODE_FLAGS or flag in PARALLEL_FLAGS:
            yield f"{flag}={value}", parse_ranks(value)
        elif flag in INDEX_FLAGS and value != "0":
            yield f"{flag}={value}", SEVERAL
        elif launcher and not launched and flag in LAUNCH_FLAGS:
            launched = parse_ranks(value)
        elif flag == "--address" and "start" in words and any(one.rpartition("/")[2] == "ray" for one in words):
            yield "ray start --address", SEVERAL
    if launcher:
        yield launcher, launched or SEVERAL
