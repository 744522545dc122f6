"""Frameworks that allocate GPU memory whether they need it or not, recognized by how a container is started.

Their usage is a setting and says nothing about their need, unless the container configures them to allocate on demand.
Most take a fraction of the memory they see, so they fit a smaller GPU only if that limits what they see or may use.
`FRAMEWORKS` is the one table: recognition, the memory fraction and docs/rightsizing.md are made from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple

from webhook.model.bounded_cache import request_cache
from webhook.model.pods import expand_references
from webhook.model.written_settings import matches_name, setting_key, written_settings

Variables = Sequence[tuple[str, str]]
"""Names and values of a container's environment, as far as known."""


class PreallocatingFramework(NamedTuple):
    """One framework, how it is recognized, and how much memory it takes.

    Attributes:
        name: As users know it.
        images: Parts of image names.
        commands: Programs, or prefixes of their paths; with a subcommand if the name alone is a common word.
        modules: Python modules and Java classes, by any part of the dotted name, or by its prefix.
        flags: Flags of the command line; "-" and "_" are equal.
        variables: Environment variables that identify it: "NAME" with any value, "NAME=value", or a prefix, "NAME*".
        fractions: Flags, variables and properties whose value is the fraction of the visible memory that it takes.
        percent: The fraction it takes by default, in percent; None if that depends on more.
        unread: Flags by which it takes another amount, or reads it from a file.
        on_demand: The variable, and its values, exactly as it reads them, that make it allocate on demand.
        takes_visible: False if it keeps pools of a size that does not depend on the memory it sees.
        of_free: True if its fraction is one of the memory that the model leaves, which is at least as much in total.
    """

    name: str
    images: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    fractions: tuple[str, ...] = ()
    percent: int | None = None
    unread: tuple[str, ...] = ()
    on_demand: tuple[str, tuple[str, ...]] | None = None
    takes_visible: bool = True
    of_free: bool = False


_VLLM_FRACTION = "--gpu-memory-utilization"
_MAX_FRACTION = "--device-memory-utilization"

FRAMEWORKS = (
    PreallocatingFramework(
        "vLLM",
        images=("vllm", "llm-d"),
        commands=("vllm", "trl vllm-serve"),
        modules=("vllm", "vllm_worker"),
        flags=(_VLLM_FRACTION,),
        variables=("VLLM_GPU_MEMORY_UTILIZATION", "VLLM_ATTENTION_BACKEND", "VLLM_WORKER_MULTIPROC_METHOD"),
        fractions=(_VLLM_FRACTION, "VLLM_GPU_MEMORY_UTILIZATION"),
        percent=90,
        unread=("--config", "--kv-cache-memory-bytes"),
    ),
    PreallocatingFramework(
        "SGLang",
        images=("sglang",),
        commands=("sglang",),
        modules=("sglang", "sglang_worker"),
        flags=("--mem-fraction-static",),
        fractions=("--mem-fraction-static",),
        unread=("--config",),
    ),
    PreallocatingFramework(
        "Text Generation Inference",
        images=("text-generation-inference",),
        commands=("text-generation-launcher", "text-generation-server"),
        flags=("--cuda-memory-fraction",),
        variables=("CUDA_MEMORY_FRACTION",),
        fractions=("--cuda-memory-fraction", "CUDA_MEMORY_FRACTION"),
        percent=100,
    ),
    PreallocatingFramework(
        "LoRAX",
        images=("lorax",),
        commands=("lorax-launcher", "lorax-server"),
        fractions=("--cuda-memory-fraction", "CUDA_MEMORY_FRACTION"),
        percent=100,
    ),
    PreallocatingFramework(
        "Aphrodite",
        images=("aphrodite",),
        commands=("aphrodite",),
        modules=("aphrodite",),
        fractions=(_VLLM_FRACTION,),
        percent=90,
        unread=("--config",),
    ),
    PreallocatingFramework(
        "Xinference",
        images=("xinference",),
        commands=("xinference", "xinference-local", "xinference-worker"),
        modules=("xinference",),
        fractions=(_VLLM_FRACTION,),
    ),
    PreallocatingFramework(
        "GPUStack",
        images=("gpustack",),
        commands=("gpustack",),
        modules=("gpustack",),
        fractions=(_VLLM_FRACTION,),
    ),
    PreallocatingFramework(
        "OpenLLM",
        images=("openllm",),
        commands=("openllm",),
        modules=("openllm",),
        fractions=(_VLLM_FRACTION,),
    ),
    PreallocatingFramework(
        "LightLLM",
        images=("lightllm",),
        modules=("lightllm",),
        flags=("--mem_fraction",),
        fractions=("--mem_fraction",),
        percent=90,
    ),
    PreallocatingFramework("MLC LLM", images=("mlc-llm",), commands=("mlc_llm",), modules=("mlc_llm",)),
    PreallocatingFramework(
        "Modular MAX",
        images=("max-nvidia", "max-openai-api", "modular/max"),
        commands=("max serve",),
        modules=("max.entrypoints",),
        flags=(_MAX_FRACTION,),
        variables=("MAX_SERVE_*",),
        fractions=(_MAX_FRACTION,),
        percent=90,
        unread=("--config-file",),
    ),
    PreallocatingFramework(
        "Triton",
        images=("tritonserver",),
        commands=("tritonserver",),
        flags=("--cuda-memory-pool-byte-size",),
        takes_visible=False,
    ),
    PreallocatingFramework(
        "TensorFlow",
        images=("tensorflow",),
        commands=("tensorflow_model_server",),
        modules=("tensorflow",),
        flags=("--per_process_gpu_memory_fraction",),
        variables=("TF_FORCE_GPU_ALLOW_GROWTH", "TF_CONFIG", "TF_GPU_*", "KERAS_BACKEND=tensorflow"),
        fractions=("--per_process_gpu_memory_fraction",),
        percent=100,
        on_demand=("TF_FORCE_GPU_ALLOW_GROWTH", ("true",)),
    ),
    PreallocatingFramework(
        "MLServer",
        images=("mlserver",),
        commands=("mlserver",),
        modules=("mlserver", "mlserver_huggingface", "mlserver_mlflow"),
        variables=("MLSERVER_*",),
        on_demand=("TF_FORCE_GPU_ALLOW_GROWTH", ("true",)),
    ),
    PreallocatingFramework(
        "JAX",
        images=("jax", "flax", "maxtext", "t5x", "axlearn", "alphafold", "colabfold"),
        commands=("run_alphafold", "colabfold_batch"),
        modules=("jax", "flax", "maxtext", "MaxText", "t5x", "axlearn"),
        variables=(
            "XLA_PYTHON_CLIENT_MEM_FRACTION",
            "XLA_CLIENT_MEM_FRACTION",
            "XLA_PYTHON_CLIENT_PREALLOCATE",
            "JAX_*",
            "KERAS_BACKEND=jax",
        ),
        fractions=("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
        percent=75,
        on_demand=("XLA_PYTHON_CLIENT_PREALLOCATE", ("false", "False", "0")),
    ),
    PreallocatingFramework(
        "NVIDIA NIM",
        images=("/nim/",),
        commands=("/opt/nim/",),
        variables=("NIM_*", "NGC_API_KEY"),
        fractions=(_VLLM_FRACTION,),
    ),
    PreallocatingFramework(
        "KServe's Hugging Face server",
        images=("huggingfaceserver",),
        modules=("huggingfaceserver",),
        fractions=(_VLLM_FRACTION,),
    ),
    PreallocatingFramework("Ray LLM", images=("ray-llm",), modules=("ray.serve.llm",), fractions=(_VLLM_FRACTION,)),
    PreallocatingFramework(
        "TensorRT-LLM",
        images=("tensorrt-llm", "tensorrtllm", "trtllm"),
        commands=("trtllm-serve", "trtllm-llmapi-launch"),
        modules=("tensorrt_llm", "trtllm"),
        flags=("--free_gpu_memory_fraction",),
        fractions=("--free_gpu_memory_fraction",),
        of_free=True,
    ),
    PreallocatingFramework(
        "LMDeploy",
        images=("lmdeploy",),
        commands=("lmdeploy",),
        modules=("lmdeploy",),
        flags=("--cache-max-entry-count",),
        fractions=("--cache-max-entry-count",),
        of_free=True,
    ),
    PreallocatingFramework(
        "DJL-LMI",
        images=("djl-serving", "djl-inference"),
        commands=("djl-serving",),
        modules=("djl_python",),
        variables=("OPTION_ROLLING_BATCH", "OPTION_TENSOR_PARALLEL_DEGREE", "OPTION_GPU_MEMORY_UTILIZATION"),
        fractions=("OPTION_GPU_MEMORY_UTILIZATION",),
    ),
    PreallocatingFramework("DeepSpeed-MII", images=("deepspeed-mii", "deepspeed/mii"), modules=("mii",)),
    PreallocatingFramework(
        "mistral.rs",
        images=("mistral.rs", "mistralrs"),
        commands=("mistralrs-server", "mistralrs"),
        flags=("--pa-gpu-mem-usage",),
        fractions=("--pa-gpu-mem-usage",),
        unread=("--pa-gpu-mem", "--pa-ctxt-len"),
        of_free=True,
    ),
    PreallocatingFramework(
        "HeavyDB",
        images=("heavyai", "heavydb", "omnisci"),
        commands=("startheavy", "/opt/heavyai/"),
        unread=("--gpu-buffer-mem-bytes",),
    ),
    PreallocatingFramework(
        "Milvus", images=("milvus",), commands=("milvus run",), variables=("KNOWHERE_GPU_MEM_POOL_SIZE",)
    ),
    PreallocatingFramework(
        "RAPIDS memory pool", modules=("PoolMemoryResource",), flags=("--rmm-pool-size", "--pool-allocator")
    ),
    PreallocatingFramework(
        "cudf.pandas",
        modules=("cudf.pandas",),
        on_demand=("CUDF_PANDAS_RMM_MODE", ("cuda", "managed", "async")),
    ),
    PreallocatingFramework(
        "Spark RAPIDS",
        images=("spark-rapids", "rapids-4-spark"),
        modules=("com.nvidia.spark", "SQLPlugin"),
        fractions=("spark.rapids.memory.gpu.allocFraction",),
        percent=100,
    ),
)
"""Defaults by the projects' own documentation. For a fraction of the memory that is free after the model is loaded
(`of_free`), no default is listed, because it says little about the whole. MLServer runs models of TensorFlow, and
nothing in a pod shows whether it does. Infinity, which serves embeddings, has no such setting: it runs PyTorch, which
allocates on demand."""

_BY_IMAGE = {part: framework for framework in FRAMEWORKS for part in framework.images}
_IN_IMAGE = re.compile("|".join(part if "/" in part else f"(?<![a-z]){part}(?![a-z])" for part in _BY_IMAGE))

_NAMES = {
    name: framework
    for framework in FRAMEWORKS
    for name in (*framework.commands, *framework.modules)
    if "/" not in name and "." not in name and " " not in name
}
_SUBCOMMANDS = {
    (program, subcommand): framework
    for framework in FRAMEWORKS
    for program, separator, subcommand in (name.partition(" ") for name in framework.commands)
    if separator
}
_PREFIXES = {
    name: framework
    for framework in FRAMEWORKS
    for name in (*framework.commands, *framework.modules)
    if "/" in name or "." in name
}
_ALL_PREFIXES = tuple(_PREFIXES)
_FLAGS = {setting_key(flag): framework for framework in FRAMEWORKS for flag in framework.flags}
_VARIABLES = {name: framework for framework in FRAMEWORKS for name in framework.variables if name.isidentifier()}
_VALUES = {
    (name, value): framework
    for framework in FRAMEWORKS
    for name, assigned, value in (variable.partition("=") for variable in framework.variables)
    if assigned
}
_VARIABLE_PREFIXES = {
    name[:-1]: framework for framework in FRAMEWORKS for name in framework.variables if name.endswith("*")
}
_ALL_VARIABLE_PREFIXES = tuple(_VARIABLE_PREFIXES)
_ON_DEMAND = {framework.on_demand[0] for framework in FRAMEWORKS if framework.on_demand}

_SIGNS_IN_TEXT = {
    *_NAMES,
    *_PREFIXES,
    *map(" ".join, _SUBCOMMANDS),
    *_VARIABLES,
    *_VARIABLE_PREFIXES,
    *(name for name, _ in _VALUES),
}
_IN_TEXT = re.compile(
    "|".join(sorted({re.escape(name).replace("_", "[-_]") for name in _SIGNS_IN_TEXT}))
    + "|fraction|utilization|pool|entry|mem[-_]usage"
)
"""A quick test for long texts worth parsing: names of programs, modules and variables, and parts of flags.

It has no quantifiers, so it takes linear time.
"""

_IN_SHELL = re.compile(r"[^\s()\[\]{}<>;&|,`'\"$]+")
"""A word of a shell command, which is one argument."""

_SHELL_VARIABLE = re.compile(r"\$\{?(\w+)")
"""A variable that the shell expands, or a reference that was too long to expand."""

_FRACTION = re.compile(r"\d{0,3}\.?\d{1,16}(?:[eE][+-]?\d{1,2})?")
_SHORTEST_ABBREVIATION, _SHORTEST_BEFORE_FRACTION = 6, 3
"""Letters of a flag that argparse accepts instead of the whole; the second if a fraction follows."""


_MOST_TEXTS = 1000
_SHORT_TEXT = 64
_MOST_CHARACTERS = 65_536
_LONGEST_IMAGE = 512
"""Limits for a pod that was written to be slow to parse."""

TOO_LARGE = PreallocatingFramework("a container that is too large to read")
"""Stands for the framework that may be behind these limits."""


def preallocating_framework(
    image: str, command: Sequence[str] = (), variables: Variables = ()
) -> PreallocatingFramework | None:
    """Return the framework that allocates memory it may not need, or None.

    Args:
        image: As the pod names it.
        command: The container's command and arguments.
        variables: Names and values of its environment, as far as known.
    """
    signs = _frameworks_in_image(image[:_LONGEST_IMAGE])
    if not command and not variables:
        return _choose_framework(signs)
    settings, texts = dict(variables), command
    if _is_too_large(texts, settings):
        return TOO_LARGE
    if any("$" in text for text in (*texts, *settings.values())):
        settings = _expand_variables(variables)
        texts = _expand_command(command, settings)
        if _is_too_large(texts, settings):
            return TOO_LARGE
    worth = _texts_worth_parsing(texts)
    words = _words_of(worth)
    by_setting = [_framework_of_name(name) for name, value in written_settings("\n".join(worth)) if value != "False"]
    by_word = (*map(_framework_of_word, words), *map(_framework_of_subcommand, words, words[1:]))
    by_variable = map(_framework_of_variable, settings.items())
    found = (*filter(None, (*by_word, *by_variable, *by_setting)), *signs)
    return _choose_framework([sign for sign in found if not _grows_on_demand(sign, settings, texts)])


def _choose_framework(found: Sequence[PreallocatingFramework]) -> PreallocatingFramework | None:
    """Return the first that takes the memory it sees, else the first."""
    return max(found, key=attrgetter("takes_visible"), default=None)


def _expand_variables(variables: Variables) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, text in variables:
        values[name] = expand_references(text, values)
    return values


def _expand_command(command: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the arguments as the kubelet expands them, and the values of variables that they name otherwise."""
    texts = [expand_references(text, settings) for text in command]
    names = dict.fromkeys(name for text in texts if "$" in text for name in _SHELL_VARIABLE.findall(text))
    return texts + [settings[name] for name in names if name in settings]


def _is_too_large(texts: Sequence[str], settings: Mapping[str, str]) -> bool:
    """Return whether a sign could be where nobody looks."""
    characters = len("".join(texts)) + len("".join(settings.values()))
    return characters > _MOST_CHARACTERS or max(len(texts), len(settings)) > _MOST_TEXTS


def _texts_worth_parsing(texts: Sequence[str]) -> list[str]:
    return [text for text in texts if len(text) < _SHORT_TEXT or _IN_TEXT.search(text)]


def _words_of(texts: Iterable[str]) -> list[str]:
    return [word for text in texts for word in _IN_SHELL.findall(text)]


def _grows_on_demand(framework: PreallocatingFramework, settings: Mapping[str, str], texts: Sequence[str]) -> bool:
    """Return whether the container configures this framework to allocate on demand.

    It is unknown what a command that names the variable does with it.
    """
    if framework.on_demand is None:
        return False
    name, values = framework.on_demand
    return settings.get(name) in values and not any(name in text for text in texts)


def _framework_of_word(word: str) -> PreallocatingFramework | None:
    if word.startswith("--"):
        return _framework_of_name(word.partition("=")[0])
    if word.startswith(_ALL_PREFIXES):
        return next(framework for prefix, framework in _PREFIXES.items() if word.startswith(prefix))
    for part in word.removeprefix("-m").rpartition("/")[2].split("."):
        if part in _NAMES:
            return _NAMES[part]
    name, assigned, value = word.partition("=")
    return _framework_of_setting((name, value)) if assigned and name not in _ON_DEMAND else None


@request_cache(1024)
def _framework_of_name(name: str) -> PreallocatingFramework | None:
    """Recognize the name of a setting, other than a variable, by its last words."""
    if name.isupper():
        return None
    key = setting_key(name)
    return _FLAGS.get(key) or next((one for flag, one in _FLAGS.items() if matches_name(key, flag)), None)


def _framework_of_subcommand(word: str, following: str) -> PreallocatingFramework | None:
    return _SUBCOMMANDS.get((word.rpartition("/")[2], following))


def _framework_of_setting(setting: tuple[str, str]) -> PreallocatingFramework | None:
    name = setting[0]
    if name.startswith(_ALL_VARIABLE_PREFIXES):
        return next(framework for prefix, framework in _VARIABLE_PREFIXES.items() if name.startswith(prefix))
    return _VARIABLES.get(name) or _VALUES.get(setting)


def _framework_of_variable(variable: tuple[str, str]) -> PreallocatingFramework | None:
    """Recognize a variable by its name and value, or by a flag or a Java class in its value."""
    value = variable[1]
    if (found := _framework_of_setting(variable)) is not None or ("--" not in value and "SQLPlugin" not in value):
        return found
    words = [
        word
        for word in _words_of(_texts_worth_parsing((value,)))
        if word.startswith("--") or word.endswith("SQLPlugin")
    ]
    return next(filter(None, map(_framework_of_word, words)), None)


@request_cache(1024)
def _frameworks_in_image(image: str) -> tuple[PreallocatingFramework, ...]:
    return tuple([_BY_IMAGE[found[0]] for found in _IN_IMAGE.finditer(image.partition("@")[0].lower())])


class MemoryFraction(NamedTuple):
    """The fraction of the visible memory that a framework takes.

    Attributes:
        setting: The flag, variable or property that sets it, for example "--gpu-memory-utilization".
        value: From above 0 to 1; None if it cannot be read or is no setting of the container.
        stated: How often the container sets it, by any setting of the framework.
    """

    setting: str
    value: float | None
    stated: int = 0


def memory_fraction(framework: PreallocatingFramework, command: Sequence[str], variables: Variables) -> MemoryFraction:
    """Return the fraction that a container sets, the last one if several; else the framework's default."""
    if framework is TOO_LARGE:
        return MemoryFraction("", None, 1)
    assigned = list(_assignments(command, variables))
    if any(name.startswith("--") and name.replace("_", "-") in framework.unread for name, _ in assigned):
        return MemoryFraction("", None, 1)
    settings = {setting_key(name): name for name in framework.fractions}
    written = [(name, text) for key, text in assigned if (name := _setting_named(key, text, settings))]
    if (unset := _mentioned_without_value(framework, command)) or written:
        setting, text = (unset, "") if unset else written[-1]
        return MemoryFraction(setting, _parse_fraction(text), len(written) + bool(unset))
    default = framework.percent / 100 if framework.percent is not None else None
    return MemoryFraction(framework.fractions[0] if framework.fractions else "", default)


def _setting_named(name: str, value: str, settings: Mapping[str, str]) -> str:
    """Return the setting of a name, as the table or else the container writes it; "" for another name.

    A name may have words before it, and argparse accepts abbreviations of flags.
    """
    key, plain = setting_key(name), name.removeprefix("-D")
    for full, setting in settings.items():
        if matches_name(key, full):
            return setting if key == full and plain.startswith("-") == setting.startswith("-") else name
    shortest = _SHORTEST_BEFORE_FRACTION if is_fraction(value) else _SHORTEST_ABBREVIATION
    if not name.startswith("--") or len(key) < shortest:
        return ""
    return next((setting for full, setting in settings.items() if full.startswith(key)), "")


def _mentioned_without_value(framework: PreallocatingFramework, command: Sequence[str]) -> str:
    """Return a variable with a fraction that a command names without a value, as `unset` does; "" for none."""
    text = "\n".join(command)
    named = [name for name in framework.fractions if name.isidentifier() and name in text]
    values = [name for name, _ in written_settings(text)] if named else []
    return next((name for name in named if text.count(name) > values.count(name)), "")


def fraction_argument(arguments: Sequence[str], setting: str) -> tuple[int, str] | None:
    """Return the index of the argument that is, or ends in, the number of a setting, and the text before the number.

    >>> fraction_argument(("serve", "--gpu-memory-utilization=0.1"), "--gpu-memory-utilization")
    (1, '--gpu-memory-utilization=')
    >>> fraction_argument(("serve", "--gpu-memory-utilization", "0.1"), "--gpu-memory-utilization")
    (2, '')
    >>> fraction_argument(("serve --gpu-memory-utilization 0.1",), "--gpu-memory-utilization") is None
    True
    """
    for index, (text, following) in enumerate(zip_longest(arguments, arguments[1:], fillvalue="")):
        key, separator, value = text.partition("=")
        if _plain_name(key) == _plain_name(setting) and is_fraction(value if separator else following):
            return (index, f"{key}=") if separator else (index + 1, "")
    return None


def is_fraction(text: str) -> bool:
    """Return whether a text is a number above 0 and up to 1."""
    return _parse_fraction(text) is not None


def _assignments(command: Sequence[str], variables: Variables) -> Iterator[tuple[str, str]]:
    """Yield names and values: of variables and the settings in them, then of the command line."""
    values: dict[str, str] = {}
    for name, text in variables:
        values[name] = expand_references(text, values)
        yield name, values[name]
        yield from written_settings(values[name])
    yield from written_settings("\n".join([expand_references(text, values) for text in command]))


def _plain_name(name: str) -> str:
    """Return a flag with dashes between its words, and a property without -D."""
    return name.replace("_", "-") if name.startswith("--") else name.removeprefix("-D")


def _parse_fraction(text: str) -> float | None:
    value = float(text) if _FRACTION.fullmatch(text) else 0.0
    return value if 0 < value <= 1 else None


def frameworks_table() -> list[str]:
    """Return the table of docs/rightsizing.md as lines."""
    lines = ["| framework | image | program or module | flag | variable | takes by default | on demand with |"]
    lines.append("|---|---|---|---|---|---|---|")
    for one in FRAMEWORKS:
        started = (*one.commands, *(name for name in one.modules if name not in one.commands))
        on_demand = (f"{one.on_demand[0]}={one.on_demand[1][0]}",) if one.on_demand else ()
        cells = (one.images, started, one.flags, one.variables)
        taken = _memory_taken(one)
        lines.append(f"| {one.name} | {' | '.join(map(_cell, cells))} | {taken} | {_cell(on_demand)} |")
    return lines


def _cell(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _memory_taken(framework: PreallocatingFramework) -> str:
    if not framework.takes_visible:
        return "pools of a fixed size"
    return f"{framework.percent} % of what it sees" if framework.percent else "most of what it sees"


if __name__ == "__main__":
    sys.stdout.write("\n".join(frameworks_table()) + "\n")
