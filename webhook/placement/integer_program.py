"""Integer programs, solved exactly by HiGHS: the least of one objective, then of the next among its optima.

HiGHS is an optional dependency. It runs in one thread and draws the same random numbers each time, so equal programs
have equal solutions unless the time ends first. Then the best solution so far is returned, with the proved bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from webhook.errors import SolverError

if TYPE_CHECKING:
    import highspy

TOLERANCE = 1e-6
"""Difference from a whole number that HiGHS accepts."""

LinearTerms = Mapping[int, int]
"""Coefficients by the index of a variable."""


class LinearRow(NamedTuple):
    """A constraint: the sum of the terms is at least `lower` and at most `upper`."""

    terms: LinearTerms
    lower: float
    upper: float


class ObjectiveValue(NamedTuple):
    """The value of an objective in a solution, and the proved lower bound of all solutions."""

    value: int
    bound: int


class ProgramSolution(NamedTuple):
    """The values of the variables, and of the objectives."""

    values: tuple[int, ...]
    objectives: tuple[ObjectiveValue, ...]


class IntegerProgram:
    """Whole variables from zero to a limit, and constraints."""

    def __init__(self) -> None:
        self._limits: list[int] = []
        self._rows: list[LinearRow] = []

    def add_variable(self, limit: int) -> int:
        """Add a variable from 0 to `limit`, and return its index."""
        self._limits.append(limit)
        return len(self._limits) - 1

    def require_sum(self, terms: LinearTerms, lower: float = -math.inf, upper: float = math.inf) -> None:
        """Add a constraint."""
        self._rows.append(LinearRow(terms, lower, upper))

    def minimize(self, objectives: Iterable[LinearTerms], start: Mapping[int, int], seconds: float) -> ProgramSolution:
        """Minimize the first objective, then the second among its optima, and so on.

        Args:
            start: The variables other than zero of a solution, which is returned if the time ends before a better one
                is found.
            seconds: Time for all objectives; each may use half of what those before have left.

        Raises:
            SolverError: HiGHS is not installed.
        """
        values: Sequence[int] = [start.get(index, 0) for index in range(len(self._limits))]
        rows, found, left = list(self._rows), list[ObjectiveValue](), seconds
        for terms in objectives:
            if not terms:
                found.append(ObjectiveValue(0, 0))
                continue
            solver = self._load_solver(rows, terms, values)
            solver.setOptionValue("time_limit", left / 2)
            solver.run()
            left -= min(left / 2, solver.getRunTime())
            values = [round(value) for value in solver.getSolution().col_value]
            value = sum(factor * values[index] for index, factor in terms.items())
            least = sum(factor * self._limits[index] for index, factor in terms.items() if factor < 0)
            found.append(ObjectiveValue(value, math.ceil(max(least, solver.getInfo().mip_dual_bound - TOLERANCE))))
            rows.append(LinearRow(terms, -math.inf, value))
        return ProgramSolution(tuple(values), tuple(found))

    def _load_solver(self, rows: Sequence[LinearRow], terms: LinearTerms, start: Sequence[int]) -> highspy.Highs:
        """Return a solver with the variables, some constraints, an objective, and a solution to start with."""
        try:
            import highspy
        except ImportError as error:
            raise SolverError("needs HiGHS, which is not installed. Write pip install 'rightslice[layout]'") from error
        solver = highspy.Highs()  # type: ignore[no-untyped-call]  # its constructor has no annotations
        for name, setting in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0)):
            solver.setOptionValue(name, setting)
        for index, limit in enumerate(self._limits):
            solver.addCol(terms.get(index, 0), 0, limit, 0, [], [])
            solver.changeColIntegrality(index, highspy.HighsVarType.kInteger)
        for row in rows:
            solver.addRow(row.lower, row.upper, len(row.terms), list(row.terms), list(row.terms.values()))
        known = highspy.HighsSolution()
        known.col_value = list(map(float, start))
        solver.setSolution(known)
        return solver
