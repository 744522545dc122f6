"""No text of a selector takes long to compile or evaluate, whatever it says."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.cpu_timer import CpuTimer
from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.dra.device_selectors import (
    MAX_EXPRESSION_BYTES,
    SelectorCompileError,
    SelectorRuntimeError,
    compile_device_selector,
)
from webhook.model.dra.resource_slices import Device

MAX_SECONDS = 0.05
"""CPU time of the fastest of a few runs."""


def repeated(part: str, separator: str, size: int = MAX_EXPRESSION_BYTES) -> str:
    """Return as many parts with separators between them as fit."""
    return separator.join([part] * ((size + len(separator)) // (len(part) + len(separator))))


EXPENSIVE = {
    "alternatives": repeated("true", "||"),
    "comparisons": repeated("device.attributes.d.a=='x'", "||"),
    "quantities": repeated("quantity('1').add(1)==quantity('2')", "&&"),
    "lists of unknown type": repeated("[]==[]", "&&"),
    "a long list": f"[{repeated('1', ',', 10_000)}].exists(x,x in [0,2])",
    "sums": "&&".join([f"{repeated('1', '+', 400)}>0"] * 25),
    "macros that double": f"optional.of(1){'.optMap(x,x)' * 300}.hasValue()",
    "loops in loops": "lists.range(99).all(a,lists.range(99).all(b,lists.range(9).exists(c,c==10)||true))",
    "texts that double": f"cel.bind(a,'{'x' * 5000}',cel.bind(b,a+a,cel.bind(c,b+b,cel.bind(d,c+c,d+d==d))))",
    "a replacement that grows": f"'{'x' * 4000}'.replace('','{'y' * 4000}').size()>1",
    "large patterns": repeated("device.attributes['d'].a.matches('a{1000}')", "||"),
    "many patterns": repeated("'x'.matches('(a|b)*c{9}')", "||"),
    "patterns in a loop": "lists.range(9999).all(i,'a'.matches('b+')||true)",
    "lists in a loop": "lists.range(200).all(i,lists.range(200)==lists.range(200))",
    "unsorted lists": "lists.range(9999).map(a,-a).sort().distinct().size()>1",
    "all characters": f"'{'x' * 9000}'.findAll('x').size()>0",
    "errors in a loop": "lists.range(9999).all(i,1/0==i||true)",
    "missing keys in a loop": "lists.range(9999).all(i,device.attributes['d'].z==1||true)",
    "versions in a loop": "lists.range(9999).all(i,semver('1.2.3-a.b.c').major()==1)",
    "parentheses": f"{'(' * 5000}true",
    "signs": f"{'-' * 10_000}1>0",
    "a long number": f"{'1' * 10_000}>0",
    "a long version": f"semver('1.0.0-{repeated('1', '.', 9000)}')==semver('1.0.{'1' * 900}')",
}


@pytest.mark.parametrize("expression", EXPENSIVE.values(), ids=EXPENSIVE)
def test_a_selector_is_compiled_and_evaluated_in_time(expression: str) -> None:
    assert len(expression) <= MAX_EXPRESSION_BYTES
    assert min(_seconds_for(expression) for _ in range(5)) < MAX_SECONDS


def _seconds_for(expression: str) -> float:
    with CpuTimer() as timer, suppress(SelectorCompileError, SelectorRuntimeError, UnmodeledExpressionError):
        compile_device_selector(expression).selects("d", Device())
    return timer.seconds
