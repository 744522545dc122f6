"""Numbers of ranks that the variables and commands of a pod with one GPU state.

The pod is one of several workers if a number is above one. An address where workers meet, or a file with their hosts,
counts too, unless it is the pod's own or a number says that there is one worker.

A number that is stated and cannot be read here (`valueFrom`, a shell variable) counts as several. `$(NAME)` is expanded
as the kubelet does. Names count in each form of `written_settings`, also after a prefix: `--world_size 4`,
`trainer.num_nodes=4` and `--distributed-world-size=4`.

Sources: torchrun, accelerate, Lightning, Hydra, fairseq, DeepSpeed, Megatron, Composer, JAX, TensorFlow (`TF_CONFIG`),
MXNet, Slurm, Open MPI, PRRTE, Horovod, Ray, vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import zip_longest
from typing import NamedTuple

from webhook.model.bounded_cache import request_cache
from webhook.model.node_labels import parse_count
from webhook.model.pods import EnvVar, Pod, expand_references
from webhook.model.written_settings import WrittenSetting, setting_key, written_settings

NODES_VARIABLE = "PET_NNODES"
"""The number of pods that torchrun waits for; training operators set it."""


class RankKind(Enum):
    """The meaning of a setting about ranks."""

    PODS = auto()
    """The number of pods or processes of a job; 1 says that the pod is the only one."""
    PARALLEL = auto()
    """The number of GPUs of one model or of its copies; 1 says nothing about other pods."""
    INDEX = auto()
    """The number of this pod among those of its job, from 0."""
    ADDRESS = auto()
    """Where the workers of a job meet, or a file with their hosts."""
    URL = auto()
    """Such an address if it is one of TCP; a name that other programs use for other things."""


class StatedRanks(NamedTuple):
    """One sign of ranks.

    Attributes:
        text: The setting as users know it, for example "--nnodes=4".
        ranks: Their number; `SEVERAL` if it cannot be read.
    """

    text: str
    ranks: int
    kind: RankKind = RankKind.PARALLEL


_COUNTED = "nodes|machines|hosts|ranks|trainers|processes"
_PARALLEL = "tensor|pipeline|data|context|expert|sequence|model"
_NAMES = (
    (
        RankKind.PODS,
        rf"(?!(?:.*-)?(?:local|max|min|graph|hidden)-)(?:.*-)?(?:nnodes|world-size|n(?:um)?-(?:{_COUNTED}))",
    ),
    (RankKind.PARALLEL, rf"(?:.*-)?(?:{_PARALLEL})(?:-model)?-parallel(?:-[a-z]+)?-(?:size|degree)"),
    (RankKind.PARALLEL, r"(?:.*-)?(?:tp|pp|dp|cp|ep|sp)-(?:size|degree)"),
    (RankKind.INDEX, r"(?:.*-)?(?:node|machine|host|trainer|world)-rank"),
    (RankKind.ADDRESS, r"master-addr|rdzv-endpoint|main-process-ip|dist-init-addr|coordinator-address"),
    (RankKind.ADDRESS, r"data-parallel-address"),
    (RankKind.URL, r"(?:.*-)?(?:dist-url|init-method)"),
)
"""Names of settings in any form, as `setting_key` returns them. All but addresses may have words before them."""

_NAME_PATTERNS = tuple([(kind, re.compile(pattern)) for kind, pattern in _NAMES])

_FLAGS = {
    **dict.fromkeys(("-tp", "--tp", "-pp", "-dp"), RankKind.PARALLEL),
    **dict.fromkeys(("--hostfile", "-hostfile", "--machinefile", "-machinefile"), RankKind.ADDRESS),
}
"""Flags whose names mean something else in other forms."""

_LONGEST_NAME = 64

_VARIABLES = {
    RankKind.PODS: (
        *("SLURM_NTASKS", "SLURM_NPROCS", "PMI_SIZE", "HOROVOD_SIZE"),
        *("PADDLE_TRAINERS_NUM", "DMLC_NUM_WORKER"),
    ),
    RankKind.INDEX: (
        *("GROUP_RANK", "RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "SLURM_NODEID", "MV2_COMM_WORLD_RANK"),
        *("PMI_RANK", "HOROVOD_RANK", "PADDLE_TRAINER_ID", "DMLC_WORKER_ID"),
    ),
    RankKind.ADDRESS: (
        *("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "NCCL_COMM_ID", "JAX_COORDINATOR_ADDRESS"),
        *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "DMLC_PS_ROOT_URI"),
    ),
}
_KIND_OF_VARIABLE = {name: kind for kind, names in _VARIABLES.items() for name in names}
"""Variables with other names."""

CLUSTER_VARIABLE = "TF_CONFIG"
"""The addresses of all workers; only distributed TensorFlow has it."""

_OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1", "/dev/null")

_LAUNCHER = re.compile(r"(?:mpirun|mpiexec|orterun)(?:\.\w+)?|prterun|prun|horovodrun|srun|jsrun|aprun")
"""Programs that start several ranks, as many as `LAUNCH_FLAGS` say."""

LAUNCH_FLAGS = frozenset({"-np", "-n", "--np", "--ntasks"})

SEVERAL = 2
"""Stands for a number that cannot be read."""

MAX_RANKS = 100_000
"""A larger number counts as unreadable."""

_PARTS = (
    *("nnodes", "world", "num-", "num_", "n-", "n_", "parallel", "-tp", "-pp", "-dp", "p-size", "p_size"),
    *("-degree", "_degree", "rank", "rdzv", "master", "main", "init", "coordinator", "dist", "hostfile", "host-file"),
    *("machinefile", "machine-file", "dmlc", "slurm", "pmi_", "horovod", "nccl_comm"),
)
_LAUNCHER_PARTS = ("mpi", "run", "ray ")
_SHELL_WORD = re.compile(r"[^\s;&|'\"()]+")
_LONGEST_COMMAND = 131_072
"""Characters of one pod that are read: Linux starts no process with a longer argument."""


def stated_ranks(pod: Pod) -> list[StatedRanks]:
    """Return the numbers of ranks that variables and commands state."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    left = _LONGEST_COMMAND
    found: list[StatedRanks] = []
    for container in containers:
        values: dict[str, str] = {}
        found += _ranks_in_variables(container.env, values)
        texts = list(_first_texts((*_settings_in_values(values), *container.command, *container.args), left))
        left -= sum(map(len, texts))
        found += _ranks_in_texts(texts, values)
    return found


def parse_ranks(text: str) -> int:
    """Return a number of ranks, the largest of a range such as "1:8"; `SEVERAL` if it cannot be read."""
    found = parse_count(text.rpartition(":")[2])
    return found if found is not None and 0 < found <= MAX_RANKS else SEVERAL


def _ranks_in_variables(env: Sequence[EnvVar], values: dict[str, str]) -> Iterator[StatedRanks]:
    """Yield the signs in the variables of a container, and fill `values` with their expanded values."""
    for variable in env:
        name = variable.name
        value = values[name] = expand_references(variable.value, values)
        kind = _kind_of_variable(name)
        if kind is None:
            continue
        if kind is RankKind.INDEX:
            ranks = SEVERAL if value != "0" else 0
            text = name
        else:
            ranks = SEVERAL if variable.value_from is not None else _count_ranks(kind, value)
            text = f"{name}={value}" if variable.value_from is None or kind is RankKind.ADDRESS else name
        if ranks:
            yield StatedRanks(text, ranks, RankKind.ADDRESS if kind is RankKind.URL else kind)


def _settings_in_values(values: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that may be part of a command."""
    return (value for value in values.values() if "=" in value or "--" in value)


def _first_texts(texts: Sequence[str], left: int) -> Iterator[str]:
    """Yield texts up to a number of characters."""
    for text in texts:
        if left <= 0:
            return
        yield text[:left]
        left -= len(text)


def _ranks_in_texts(texts: Sequence[str], values: Mapping[str, str]) -> Iterator[StatedRanks]:
    """Yield the signs in the arguments of a container."""
    if not texts:
        return
    raw = " ".join(texts).lower()
    has_setting = any(part in raw for part in _PARTS)
    if not has_setting and not any(part in raw for part in _LAUNCHER_PARTS):
        return
    text = " ".join([expand_references(each, values) for each in texts])[:_LONGEST_COMMAND]
    if has_setting:
        yield from filter(None, map(_ranks_of_setting, written_settings(text)))
    yield from _ranks_of_launcher(text)


def _ranks_of_setting(setting: WrittenSetting) -> StatedRanks | None:
    """Return the sign in a setting, which only counts with a number or a variable if it is not written as a flag."""
    kind = _kind_of_setting(setting.name)
    if kind is None or not (setting.is_flag or _is_readable(kind, setting)):
        return None
    ranks = _count_ranks(kind, setting.value)
    name = setting.name.replace("_", "-") if setting.is_flag else setting.name
    kind = RankKind.ADDRESS if kind is RankKind.URL else kind
    return StatedRanks(f"{name}={setting.value}", ranks, kind) if ranks else None


def _is_readable(kind: RankKind, setting: WrittenSetting) -> bool:
    """Return whether the value of an assignment is one, and no expression of Python."""
    if kind is RankKind.ADDRESS:
        return setting.name.isupper() or "$" in setting.value or ":" in setting.value
    return kind is RankKind.URL or "$" in setting.value or setting.value[:1].isdigit()


def _count_ranks(kind: RankKind, value: str) -> int:
    """Return the number of ranks that a value states; 0 if it states none.

    >>> [_count_ranks(RankKind.PARALLEL, each) for each in ("4", "1", "$N", "auto", "-1")]
    [4, 1, 2, 0, 0]
    >>> [_count_ranks(RankKind.URL, each) for each in ("tcp://train-0:29500", "tcp://localhost:1", "env://", "xavier")]
    [2, 0, 0, 0]
    """
    if kind is RankKind.ADDRESS:
        return SEVERAL if _names_another_host(value) else 0
    if kind is RankKind.URL:
        return SEVERAL if value.startswith("tcp://") and _names_another_host(value) else 0
    if value == "0" or (kind is RankKind.PARALLEL and (value.isalpha() or value == "-1")):
        return 0
    return SEVERAL if kind is RankKind.INDEX else parse_ranks(value)


def _names_another_host(address: str) -> bool:
    """Return whether an address, with or without scheme and port, is or may be one outside the pod.

    >>> [_names_another_host(each) for each in ("tcp://train-0:29500", "[::1]:29500", "localhost", "")]
    [True, False, False, False]
    """
    host = address.rpartition("//")[2]
    return bool(host) and not host.removeprefix("[").startswith(_OWN_ADDRESSES)


def _kind_of_variable(name: str) -> RankKind | None:
    if name == CLUSTER_VARIABLE:
        return RankKind.INDEX
    return _KIND_OF_VARIABLE.get(name) or _kind_of_name(name)


def _kind_of_setting(name: str) -> RankKind | None:
    return _FLAGS.get(name.replace("_", "-")) or _KIND_OF_VARIABLE.get(name) or _kind_of_name(name)


@request_cache(1024)
def _kind_of_name(name: str) -> RankKind | None:
    """Return the meaning of a name, by its words."""
    if len(name) > _LONGEST_NAME:
        return None
    key, last = setting_key(name), setting_key(name.rpartition(".")[2])
    for kind, pattern in _NAME_PATTERNS:
        if pattern.fullmatch(last if kind is RankKind.ADDRESS else key):
            return kind
    return None


def _ranks_of_launcher(text: str) -> Iterator[StatedRanks]:
    """Yield the sign of a program that starts several ranks, or joins a node to a cluster of Ray."""
    words = [word for word in _SHELL_WORD.findall(text) if word != "\\"]
    programs = {word.rpartition("/")[2] for word in words}
    launcher = next(filter(_LAUNCHER.fullmatch, sorted(programs)), "")
    if launcher:
        yield StatedRanks(launcher, _launched_ranks(words))
    if "ray" in programs and "start" in words and any(word.partition("=")[0] == "--address" for word in words):
        yield StatedRanks("ray start --address", SEVERAL)


def _launched_ranks(words: Sequence[str]) -> int:
    """Return the number of ranks that the flags of a launcher state; `SEVERAL` without one."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, separator, value = word.partition("=")
        if name in LAUNCH_FLAGS:
            return parse_ranks(value if separator else following)
    return SEVERAL
