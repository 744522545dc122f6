"""Settings in the commands of containers, in each form that programs read.

These forms all state that `num-nodes` is 4:

* flags: `--num-nodes 4`, `--num_nodes=4`, `-Dnum.nodes=4`
* properties: `trainer.num_nodes=4`, `+trainer.num_nodes=4`, `--trainer.num_nodes=4`
* shell commands: `NUM_NODES=4 python t.py`, `${ARGS:---num-nodes=4}`
* inline Python, JSON and YAML: `Trainer(num_nodes=4)`, `environ["NUM_NODES"] = "4"`, `"num_nodes": 4`

A setting is known by its words: `matches_name` compares the last of them, so a prefix such as `trainer.` or
`--vllm_` is ignored. Words in paths and addresses are no settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

_VALUE = r"(?:\[[0-9A-Fa-f:.]*\])?(?:\$\{[^{}\s]*\}|[^\s;&|'\"`()\[\]{}<>,])*"
_SETTING = re.compile(
    r"(?<![\w./$?-])"
    r"(?:(?P<flag>-{1,2}[A-Za-z][\w.-]*+)(?:[\"']?\s*+[=:,]?\s*+[\"']?)"
    r"|\+{0,2}(?P<name>[A-Za-z_][\w.-]*+)"
    r"(?:[\"']?\]?\s*+(?:=(?!=)|:(?=[\"'\s\d.]))|[\"']\s*+,(?=\s*+[\"']))\s*+[\"']?)"
    rf"(?={_VALUE})"
)
_READ_VALUE = re.compile(_VALUE)
"""Every quantifier is possessive or ends at a character that it excludes, so reading takes linear time."""

_SHELL_DEFAULT = re.compile(r"\$\{\w+:?[-=+](?=-)")
"""The part of `${NAME:---flag=4}` before the flag."""

MOST_SETTINGS = 1_000
"""Of one command; the others are not read."""

_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")


class WrittenSetting(NamedTuple):
    """One setting as a command states it.

    Attributes:
        name: As written, for example "--trainer.num_nodes".
        value: Text up to the next separator; "" if there is none.
    """

    name: str
    value: str

    @property
    def is_flag(self) -> bool:
        """Return whether it is written with dashes."""
        return self.name.startswith("-")


def written_settings(text: str) -> Iterator[WrittenSetting]:
    """Yield the settings in a command whose arguments are separated by white space.

    >>> [tuple(one) for one in written_settings("python t.py --nnodes 4 trainer.num_nodes=2 /data/num_nodes=3")]
    [('--nnodes', '4'), ('trainer.num_nodes', '2')]
    >>> [tuple(one) for one in written_settings('LLM("m", tp = 2); run ${ARGS:---np=4}')]
    [('tp', '2'), ('--np', '4')]
    """
    text = _SHELL_DEFAULT.sub(" ", text) if "${" in text else text
    text = text.replace("\\\n", " ")
    for found in islice(_SETTING.finditer(text), MOST_SETTINGS):
        value = _READ_VALUE.match(text, found.end())
        yield WrittenSetting(found["flag"] or found["name"], value[0] if value else "")


def setting_key(name: str) -> str:
    """Return the words of a name in lower case, separated by "-".

    >>> [setting_key(each) for each in ("--nnodes", "trainer.num_nodes", "WORLD_SIZE", "-Dspark.allocFraction")]
    ['nnodes', 'trainer-num-nodes', 'world-size', 'spark-alloc-fraction']
    """
    name = name[2:] if name.startswith("-D") else name.lstrip("-+")
    return _CAMEL_CASE.sub("-", name).lower().replace("_", "-").replace(".", "-")


def matches_name(key: str, name: str) -> bool:
    """Return whether a key is a name, or ends with it after other words.

    >>> [matches_name(key, "num-nodes") for key in ("num-nodes", "trainer-num-nodes", "maxnum-nodes", "num-nodes-x")]
    [True, True, False, False]
    """
    return key == name or key.endswith(f"-{name}")
