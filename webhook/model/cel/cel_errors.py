"""Errors of expressions.

* CelSyntaxError               the API server does not compile the expression
* UnmodeledExpressionError    nothing is known here about the expression
* CelError                     it has no value; `&&` and `||` may absorb that
  + MissingKeyError            a map lacks a key
* FatalCelError                it has no value, whatever is around the part that failed
  + StepLimitError             it takes more steps than are evaluated here
"""

from __future__ import annotations


class CelSyntaxError(Exception):
    """An expression that the API server does not compile, and the offset where that shows."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


class UnmodeledExpressionError(Exception):
    """An expression that the API server may accept, but that is not evaluated here."""


class CelError(Exception):
    """An error of an expression at run time, such as a missing key; `&&` and `||` may absorb it."""


class MissingKeyError(CelError):
    """A key that a map lacks."""

    def __init__(self, key: object) -> None:
        super().__init__(f"no such key: {key}")
        self.key = key


class FatalCelError(Exception):
    """An error that ends evaluation whatever is around it."""


class StepLimitError(FatalCelError):
    """The expression needs more steps than are evaluated here."""
