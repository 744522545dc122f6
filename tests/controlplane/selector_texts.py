"""Selectors of devices, from the grammar of types, near it, and mutated from it; and devices to evaluate them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from random import Random
from typing import Any

from webhook.model.cel.cel_errors import UnmodeledExpressionError
from webhook.model.dra.device_selectors import SelectorCompileError, compile_device_selector

DRIVERS = ("gpu.nvidia.com", "gpu.amd.com")
DOMAINS = (*DRIVERS, "resource.kubernetes.io", "unknown.example.com")
STRINGS = ("type", "productName", "profile", "pcieRoot", "uuid", "brand")
INTEGERS = ("index", "numaNode")
BOOLEANS = ("healthy", "xgmi")
VERSIONS = ("driverVersion", "cudaComputeCapability")
CAPACITIES = ("memory", "multiprocessors", "decoders")
NAMES = (*STRINGS, *INTEGERS, *BOOLEANS, *VERSIONS)

TEXTS = (
    "", "gpu", "mig", "NVIDIA H100 80GB HBM3", "1g.10gb", "pci0000:80", "Hopper", "a", "ä€", "A,B,,c", " x ", "aXbXc",
    "12", "-3", "1.5", "true", "v1.2", "12.4.0", "10Gi", "9850Mi",
)  # fmt: skip
QUANTITIES = (
    "10Gi", "9850Mi", "9850M", "0", "1", "0.5", "1500m", "1k", "-1", "80Gi", "1e3", "10GB", "", "1Ki1", "0.1n",
    "9223372036854775808", "7Ei", "12345678901234567890",
)  # fmt: skip
SEMVERS = (
    "1.2.3", "12.4.0", "570.124.6", "9.0.0", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0+build", "v1.2",
    "1.2", "01.2.3", "1", "", "1.2.3-", "1.2.3+", "1.2.x", "9.0.0-0", "9.0.0-01", "18446744073709551615.0.0",
    "18446744073709551616.0.0", "v570.124", "1.2-a", "1..2", "0001.0.0",
)  # fmt: skip
PATTERNS = (
    "^gpu$",
    "[0-9]+g",
    "H100|A100",
    "(?i)nvidia",
    "a*",
    "[0-9]*",
    "(",
    "a**",
    "\\\\d+",
    ".",
    "^$",
    "x{2,3}",
    "\\\\p{Lu}",
)
INTS = ("0", "1", "-1", "2", "3", "7", "10", "80", "0x1F", "9223372036854775807", "-9223372036854775808", "2147483648")
DOUBLES = ("0.0", "1.5", "-2.5", "1e3", ".5", "1e-5", "3.0", "1e21", "123456789.0")

TYPES = ("bool", "int", "double", "string", "uint", "quantity", "semver", "list_int", "list_string", "map", "optional")


class SelectorGrammar:
    """Generates expressions of a type, each of limited depth."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._variables: list[tuple[str, str]] = []

    def selector(self) -> str:
        """Return an expression that should be a condition."""
        random = self._random
        kind = random.random()
        if kind < 0.35:
            return " && ".join(self._usual_condition() for _ in range(random.randint(1, 4)))
        text = self.expression("bool", random.choice((1, 2, 2, 3, 3, 4)))
        return text if kind < 0.9 else self._mutated(text)

    def expression(self, kind: str, depth: int) -> str:
        """Return an expression of a type."""
        random = self._random
        if kind != "pattern" and random.random() < 0.03:
            kind = random.choice(TYPES)
        known = [name for name, one in self._variables if one == kind]
        if known and random.random() < 0.4:
            return random.choice(known)
        if depth <= 0 or kind not in _FORMS or random.random() < 0.1:
            return self._leaf(kind)
        if random.random() < 0.12:
            return self._wrapped(kind, depth)
        return str(random.choice(_FORMS[kind])(self, depth - 1))

    def _wrapped(self, kind: str, depth: int) -> str:
        random = self._random
        form = random.randrange(6)
        if form == 0:
            return f"({self.expression('bool', depth - 1)} ? {self.expression(kind, depth - 1)} : {self._leaf(kind)})"
        if form == 1:
            other = random.choice(TYPES)
            value = self.expression(other, depth - 1)
            return f"cel.bind(b{depth}, {value}, {self._within(f'b{depth}', other, kind, depth - 1)})"
        if form == 2:
            return f"dyn({self.expression(kind, depth - 1)})"
        if form == 3:
            return f"[{self._leaf(kind)}, {self.expression(kind, depth - 1)}][{random.choice(('0', '1', '2', '-1'))}]"
        if form == 4:
            use = random.choice(("value()", "orValue(1)", "or(optional.none()).value()"))
            return f"optional.of({self.expression(kind, depth - 1)}).{use}"
        use = random.choice((".k", "['k']", ".z", "['z']", ".?k.value()"))
        return f"{{'k': {self.expression(kind, depth - 1)}}}{use}"

    def _within(self, name: str, variable: str, kind: str, depth: int) -> str:
        self._variables.append((name, variable))
        text = self.expression(kind, depth)
        self._variables.pop()
        return text

    def _leaf(self, kind: str) -> str:
        random = self._random
        if random.random() < 0.35 and kind in _ATTRIBUTES:
            return self.attribute(random.choice(_ATTRIBUTES[kind]))
        if kind == "quantity" and random.random() < 0.6:
            return self._field("capacity", random.choice(CAPACITIES))
        return str(random.choice(_LEAVES[kind])(random))

    def attribute(self, name: str) -> str:
        """Return an attribute."""
        return self._field("attributes", self._random.choice(NAMES) if self._random.random() < 0.1 else name)

    def _field(self, group: str, name: str) -> str:
        random = self._random
        domain = random.choice(DOMAINS) if random.random() < 0.3 else DRIVERS[0]
        if random.random() < 0.05:
            return f"device.{group}.{random.choice(('a', 'gpu', 'memory'))}.{name}"
        return f"device.{group}['{domain}']" + random.choice((f".{name}", f".{name}", f".{name}", f"['{name}']"))

    def _usual_condition(self) -> str:
        """Return a condition as users write it."""
        random = self._random
        text, name = random.choice(TEXTS), random.choice(STRINGS)
        capacity = self._field("capacity", random.choice(CAPACITIES))
        amount = random.choice(QUANTITIES[:10])
        version = self.attribute(random.choice(VERSIONS))
        domain = f"device.attributes['{random.choice(DOMAINS)}']"
        return random.choice(
            (
                f"{self.attribute(name)} {random.choice(('==', '!='))} {quoted(random, text)}",
                f"device.driver == '{random.choice(DRIVERS)}'",
                f"{capacity}.compareTo(quantity('{amount}')) {random.choice(('>=', '>', '==', '<='))} 0",
                f"{capacity}.{random.choice(('isGreaterThan', 'isLessThan'))}(quantity('{amount}'))",
                f"{version}.{random.choice(('isGreaterThan', 'isLessThan'))}(semver('{random.choice(SEMVERS[:8])}'))",
                f"{version}.compareTo(semver('{random.choice(SEMVERS)}', true)) >= 0",
                f"'{name}' in {domain} && {domain}.{name} == '{text}'",
                f"has({domain}.{name})",
                f"{domain}.?{name}.orValue('none') == '{text}'",
                f"{self.attribute(name)} in {[text, 'gpu', 'mig']}",
                f"{self.attribute(random.choice(INTEGERS))} {random.choice(('==', '>=', '<'))} {random.choice(INTS)}",
                self.attribute(random.choice(BOOLEANS)),
                f"!{self.attribute(random.choice(BOOLEANS))}",
                f"{self.attribute(name)}.matches('{random.choice(PATTERNS)}')",
                f"{self.attribute(name)}.lowerAscii().contains('{text.lower()}')",
                f"cel.bind(d, {domain}, d.{name} == '{text}' || d.?{random.choice(NAMES)}.hasValue())",
                f"{domain}.exists(k, {domain}[k] == '{text}')",
                f"{domain}.all(k, v, v != '{text}')",
                f"({self.attribute(name)} == '{text}' || {self.attribute(name)} == 'gpu')",
                "device.allowMultipleAllocations",
            )
        )

    def _mutated(self, text: str) -> str:
        random = self._random
        position = random.randrange(len(text) + 1)
        piece = random.choice(
            ("(", ")", "[", "]", "'", "!", "-", "&&", "||", " ", ".", "?", "x", "1", "u", "==", "in ", ",")
        )
        kind = random.randrange(3)
        if kind == 0:
            return text[:position] + piece + text[position:]
        if kind == 1:
            return text[:position] + text[position + 1 :]
        return text[: random.randrange(len(text) + 1)] + text[position:]


def quoted(random: Random, text: str) -> str:
    """Return a text as a literal."""
    return random.choice((f"'{text}'", f'"{text}"', f"r'{text}'", f"'''{text}'''"))


_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "string": STRINGS, "int": INTEGERS, "bool": BOOLEANS, "semver": VERSIONS,
}  # fmt: skip

_LEAVES: Mapping[str, tuple[Callable[[Random], str], ...]] = {
    "bool": (lambda _: "true", lambda _: "false", lambda _: "device.allowMultipleAllocations"),
    "int": (lambda random: random.choice(INTS),),
    "uint": (lambda random: random.choice(("0u", "1u", "3u", "18446744073709551615u")),),
    "double": (lambda random: random.choice(DOUBLES),),
    "string": (lambda random: quoted(random, random.choice(TEXTS)), lambda _: "device.driver"),
    "quantity": (lambda random: f"quantity('{random.choice(QUANTITIES)}')",),
    "semver": (
        lambda random: f"semver('{random.choice(SEMVERS)}')",
        lambda random: f"semver('{random.choice(SEMVERS)}', {random.choice(('true', 'false'))})",
    ),
    "pattern": (lambda random: random.choice(PATTERNS),),
    "list_int": (lambda random: f"[{', '.join(random.choices(INTS[:8], k=random.randrange(4)))}]",),
    "list_string": (lambda random: str(random.choices(TEXTS, k=random.randrange(4))),),
    "map": (
        lambda _: "{'a': 1, 'b': 2}", lambda _: "{}", lambda random: f"device.attributes['{random.choice(DOMAINS)}']",
        lambda _: "{'a': 1, ?'b': optional.none()}",
    ),
    "optional": (
        lambda _: "optional.none()", lambda random: f"optional.of({random.choice(INTS)})",
        lambda random: f"device.attributes['{DRIVERS[0]}'].?{random.choice(NAMES)}",
        lambda random: f"device.attributes[?'{random.choice(DOMAINS)}'].?{random.choice(NAMES)}",
        lambda random: f"optional.ofNonZeroValue({random.choice(INTS)})",
    ),
}  # fmt: skip


def _template(text: str) -> Callable[[SelectorGrammar, int], str]:
    """Return a form: `%type%` stands for an expression of that type, `%x:type:body%` binds x in what follows."""
    pieces = text.split("%")

    def build(grammar: SelectorGrammar, depth: int) -> str:
        parts: list[str] = []
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                parts.append(piece)
            elif ":" in piece:
                name, variable, kind = piece.split(":")
                parts.append(grammar._within(name, variable, kind, depth))
            else:
                parts.append(grammar.expression(piece, depth))
        return "".join(parts).replace(" MOD ", " % ")

    return build


_TEMPLATES = {
    "bool": (
        "(%bool% && %bool%)", "(%bool% || %bool%)", "!%bool%", "%int% == %int%", "%string% == %string%",
        "%string% != %string%", "%quantity% == %quantity%", "%semver% == %semver%", "%semver% != %string%",
        "%list_int% == %list_int%", "%map% == %map%", "%optional% == %optional%", "%int% < %int%", "%double% >= %int%",
        "%string% <= %string%", "%uint% > %int%", "%bool% < %bool%", "%string% in %list_string%", "%int% in %list_int%",
        "%string% in %map%", "%int% in [1, 2, 3]", "%string% in ['gpu', 'mig']", "%semver% in ['1.2.3']",
        "%quantity% in [%quantity%]", "%string%.startsWith(%string%)", "%string%.endsWith(%string%)",
        "%string%.contains(%string%)", "%string%.matches('%pattern%')", "%string%.matches(%string%)",
        "matches(%string%, '%pattern%')", "isQuantity(%string%)", "isSemver(%string%)", "isSemver(%string%, %bool%)",
        "%quantity%.isGreaterThan(%quantity%)", "%quantity%.isLessThan(%quantity%)", "%quantity%.isInteger()",
        "%semver%.isGreaterThan(%semver%)", "%semver%.isLessThan(%semver%)", "%optional%.hasValue()",
        "%list_int%.all(x, %x:int:bool%)", "%list_string%.exists(y, %y:string:bool%)", "has(%map%.a)",
        "%list_int%.exists_one(z, %z:int:bool%)", "%map%.exists(k, %k:string:bool%)",
        "%map%.all(p, q, %p:string:bool%)",
        "cel.bind(m, %map%, m.exists(k, m[k] == %k:string:int% && %k:string:bool%))",
        "%list_int%.exists(i, v, %v:int:bool%)", "%list_int%.existsOne(i, v, %i:int:bool%)", "%list_int%.isSorted()",
        "sets.contains(%list_int%, %list_int%)", "sets.equivalent(%list_string%, %list_string%)", "bool(%string%)",
        "sets.intersects(%list_int%, %list_int%)", "type(%int%) == int", "%bool% == %bool%", "%double% == %int%",
        "dyn(%int%) == %double%", "dyn(%string%) == %int%", "dyn(%semver%) == %quantity%", "null == %optional%",
    ),
    "int": (
        "(%int% + %int%)", "(%int% - %int%)", "%int% * %int%", "(%int% / %int%)", "(%int% MOD %int%)", "-%int%",
        "size(%string%)", "%list_int%.size()", "size(%map%)", "int(%string%)", "int(%double%)", "int(%uint%)",
        "%quantity%.compareTo(%quantity%)", "%quantity%.asInteger()", "sign(%quantity%)", "%semver%.major()",
        "%semver%.minor()", "%semver%.patch()", "%semver%.compareTo(%semver%)", "%string%.indexOf(%string%)",
        "%string%.indexOf(%string%, %int%)", "%string%.lastIndexOf(%string%)", "%string%.lastIndexOf(%string%, %int%)",
        "%list_int%.indexOf(%int%)", "%list_int%.lastIndexOf(%int%)", "%list_int%.sum()", "%list_int%.max()",
        "%list_int%.min()", "%list_int%[%int%]", "%optional%.value()", "%optional%.orValue(%int%)", "%map%.a",
        "%optional%.optMap(o, %o:int:int%).orValue(%int%)", "%list_int%.first().value()",
    ),
    "uint": (
        "uint(%int%)", "uint(%string%)", "(%uint% + %uint%)", "(%uint% - %uint%)", "%uint% * %uint%", "uint(%double%)",
    ),
    "double": (
        "double(%int%)", "double(%string%)", "%quantity%.asApproximateFloat()", "(%double% + %double%)",
        "(%double% / %double%)", "-%double%", "%double% * %double%",
    ),
    "string": (
        "(%string% + %string%)", "string(%int%)", "string(%double%)", "string(%bool%)", "%string%.lowerAscii()",
        "%string%.upperAscii()", "%string%.trim()", "%string%.charAt(%int%)", "%string%.substring(%int%)",
        "%string%.substring(%int%, %int%)", "%string%.replace(%string%, %string%)", "strings.quote(%string%)",
        "%string%.replace(%string%, %string%, %int%)", "%list_string%.join()", "%list_string%.join(%string%)",
        "%string%.find('%pattern%')", "%list_string%[%int%]", "string(b'ab')", "%list_string%.min()",
    ),
    "quantity": (
        "quantity(%string%)", "%quantity%.add(%quantity%)", "%quantity%.add(%int%)", "%quantity%.sub(%quantity%)",
        "%quantity%.sub(%int%)",
    ),
    "semver": ("semver(%string%)", "semver(%string%, %bool%)"),
    "list_int": (
        "[%int%, %int%]", "%list_int% + %list_int%", "%list_int%.map(x, %x:int:int%)", "%list_int%.sort()",
        "%list_int%.filter(x, %x:int:bool%)", "%list_int%.map(x, %x:int:bool%, %x:int:int%)", "%list_int%.reverse()",
        "%list_int%.distinct()", "%list_int%.slice(%int%, %int%)", "[%list_int%, %list_int%].flatten()",
        "lists.range(3)", "%list_int%.sortBy(x, %x:int:int%)", "[%int%, ?%optional%]",
        "%list_int%.transformList(i, v, %i:int:int%)", "optional.unwrap([%optional%])", "[%optional%].unwrapOpt()",
    ),
    "list_string": (
        "%string%.split(%string%)", "%string%.split(%string%, %int%)", "%string%.findAll('%pattern%')", "[%string%]",
        "%string%.findAll('%pattern%', %int%)", "%map%.map(k, %k:string:string%)", "%list_string%.sort()",
        "%list_string%.sortBy(s, %s:string:int%)", "%list_string%.filter(s, %s:string:bool%)",
    ),
    "map": (
        "{%string%: %int%}", "%map%.transformMap(k, v, %k:string:int%)", "device.attributes[%string%]",
        "%list_string%.transformMapEntry(i, s, {s: i})", "{'a': %int%, ?'b': %optional%}",
    ),
    "optional": (
        "optional.of(%int%)", "optional.ofNonZeroValue(%int%)", "%map%.?a", "%map%[?%string%]", "%list_int%[?%int%]",
        "%optional%.or(%optional%)", "%optional%.optMap(o, %o:int:int%)", "%list_int%.last()",
        "%optional%.optFlatMap(o, %o:int:optional%)",
    ),
}  # fmt: skip

_FORMS: Mapping[str, tuple[Callable[[SelectorGrammar, int], str], ...]] = {
    kind: tuple(map(_template, texts)) for kind, texts in _TEMPLATES.items()
}


def selector_texts(random: Random, count: int) -> Iterator[str]:
    """Return this many selectors."""
    for _ in range(count):
        yield SelectorGrammar(random).selector()


def valid_selectors(random: Random, count: int) -> list[str]:
    """Return this many selectors that compile and that we evaluate."""
    return _selectors(random, count, compiles=True)


def rejected_selectors(random: Random, count: int) -> list[str]:
    """Return this many selectors that do not compile."""
    return _selectors(random, count, compiles=False)


def _selectors(random: Random, count: int, *, compiles: bool) -> list[str]:
    grammar = SelectorGrammar(random)
    return list(islice((text for text in iter(grammar.selector, None) if _compiles(text) is compiles), count))


def _compiles(text: str) -> bool | None:
    """Return whether a selector compiles; None if that is not known."""
    try:
        compile_device_selector(text)
    except SelectorCompileError:
        return False
    except UnmodeledExpressionError:
        return None
    return True


def random_device(random: Random) -> dict[str, Any]:
    """Return a device as a driver publishes it, with attributes that are missing or of another type."""
    attributes: dict[str, Any] = {}
    for name in NAMES:
        if random.random() < 0.75:
            domain = random.choice(("", "", "", *(f"{one}/" for one in DOMAINS[:3])))
            attributes[f"{domain}{name}"] = _attribute(random, name)
    capacity = {name: {"value": random.choice(QUANTITIES[:11])} for name in CAPACITIES if random.random() < 0.8}
    device: dict[str, Any] = {"name": "d", "attributes": attributes, "capacity": capacity}
    if random.random() < 0.4:
        device["allowMultipleAllocations"] = random.random() < 0.5
    return {"driver": random.choice((*DRIVERS, DRIVERS[0])), "device": device}


def _attribute(random: Random, name: str) -> dict[str, Any]:
    kinds: Mapping[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
        "string": (STRINGS, TEXTS),
        "int": (INTEGERS, (0, 1, 2, 3, -1, 1 << 62)),
        "bool": (BOOLEANS, (True, False)),
        "version": (VERSIONS, SEMVERS[:8]),
    }
    usual = next(kind for kind, (names, _) in kinds.items() if name in names)
    kind = random.choice(tuple(kinds)) if random.random() < 0.05 else usual
    return {kind: random.choice(kinds[kind][1])}
