"""Quantity strings: from the grammar, near it, and mutated from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from webhook.model.apimachinery import MAX_LENGTH

SUFFIXES = ("", "", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
ODD_SUFFIXES = ("e", "E", "ki", "K", "KI", "mi", "e3", "E3", "e-3", "e+3", "e03", "ee3", "e3m", "Kim", "i", "m3", "k-")
LETTERS = "0123456789.+-eEinumkKMGTP _x,\u0663\uff11"
_POWER = re.compile(r"[eE]([+-]?[0-9]{1,25})\Z", re.ASCII)
EDGE_CASES = (
    "", ".", "-", "+", "k", "Ki", "Ei", "-Ei", "1.G", "5.", ".5", "+1", " 1 ", "1_000", "\uff11", "\u0661", "0x10",
    "1ki", "NaN", "-0", "00", "0.0", "0Ki", "8Ei", "9E", "10E", "1000E", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "7Ei", "8191Pi", "8192Pi", "1e18", "1e19", "1e4294967296",
    "1e4294967299", "1e9223372036854775807", "1e9223372036854775808", "999999999999999999", "1000000000000000000",
    "0.1n", "0.0000000001", "-0.0000000001", "1.5Gi", "0.5Gi", "0.1Ki", "1.1Ki", "1023Ki", "1024Ki", "1025Ki", "12e6",
    "0e-2147483648", "0e2147483647", "-0e-2147483647", "0.00000000000000000000e2147483647", "1e-2147483648",
    "1e2147483645", "1e402", "1e400", "1e401", "1.5e4294967297", "0e9223372036854775807", "1e-9223372036854775808",
    "123456789012345678901234567890e300", "1e-300", "1e300", "-1.5", "-1500m", "100m", "1000m", "1.500", "1500m",
)  # fmt: skip
"""Edge cases of the rules, and every string that our parser once got wrong."""


def quantity_strings(random: Random, count: int) -> Iterator[str]:
    """Return this many strings, the named ones first, with exponents of all of int32 and beyond."""
    yield from EDGE_CASES[:count]
    yielded = len(EDGE_CASES)
    while yielded < count:
        text = _from_grammar(random)
        text = _mutated(random, text) if random.random() < 0.25 else text
        if len(text) <= MAX_LENGTH:
            yielded += 1
            yield text


def is_slow_in_go(text: str) -> bool:
    """Return whether Go would write out its power of ten, truncated to 32 bits, to parse, add or compare it."""
    found = _POWER.search(text)
    power = int(found[1]) if found else 0
    return abs((power + (1 << 31)) % (1 << 32) - (1 << 31)) > 300


def is_zero(text: str) -> bool:
    """Return whether it has no digit but 0 before its exponent."""
    return not re.search("[1-9]", _POWER.sub("", text))


def _from_grammar(random: Random) -> str:
    sign = random.choice(("", "", "", "", "-", "+"))
    text = sign + _digits(random, random.choice((1, 1, 2, 3, 5, 9, 18, 19, 24)))
    if random.random() < 0.3:
        text += "." + _digits(random, random.choice((0, 1, 2, 3, 9, 10, 12)))
    if random.random() < 0.2:
        power = random.choice((0, 1, 3, 6, 9, 18, 20, 40, 299, _large_power(random)))
        return f"{text}{random.choice('eE')}{random.choice(('', '', '+', '-'))}{power}"
    return text + random.choice(ODD_SUFFIXES if random.random() < 0.05 else SUFFIXES)


def _large_power(random: Random) -> int:
    edge = 1 << random.choice((8, 16, 30, 31, 32, 63))
    return random.choice((random.randint(300, 1000), random.randint(0, edge), edge + random.randint(-20, 20)))


def _digits(random: Random, max_digits: int) -> str:
    count = random.randint(0 if random.random() < 0.02 else 1, max(1, max_digits))
    kind = random.random()
    if kind < 0.1:
        return str(1 << random.randint(0, 70))[:max_digits]
    if kind < 0.2:
        return random.choice("123456789") + "0" * (count - 1)
    if kind < 0.25:
        return "0" * random.randint(1, 4) + str(random.randint(0, 10**count))
    return "".join(random.choices("0123456789", k=count))


def _mutated(random: Random, text: str) -> str:
    position = random.randint(0, len(text))
    kind = random.randrange(4)
    if kind == 0:
        return text[:position] + random.choice(LETTERS) + text[position:]
    if kind == 1:
        return text[:position] + text[position + 1 :]
    if kind == 2:
        return text[:position] + random.choice(LETTERS) + text[position + 1 :]
    return text[:position] + text[position:][::-1]
