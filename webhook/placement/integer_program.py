"""Integer programs, solved exactly by HiGHS: the least of one objective, then of the next among its optima.

HiGHS is an optional dependency. It runs in one thread and draws the same random numbers each time, so equal programs
have equal solutions unless the time ends first. Then the best solution so far is returned, with the proved bounds.

It does not presolve: the presolve of HiGHS 1.14 and 1.15 removes the optimum of some small programs, and calls
another solution optimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from webhook.errors import SolverError

if TYPE_CHECKING:
    import highspy

TOLERANCE = 1e-6
"""Difference from a whole number that HiGHS accepts."""

LinearTerms = Mapping[int, int]
"""Coefficients by the index of a variable."""

SOLVER_REQUIREMENT = "highspy>=1.12,<1.16"
"""The requirement of the extra `layout`; an index may have another package by the name of ours."""


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
    """The values of the variables, and of the objectives, and the time that these took."""

    values: tuple[int, ...]
    objectives: tuple[ObjectiveValue, ...]
    seconds: float


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
        found, left, solver = list[ObjectiveValue](), seconds, self._load_solver()
        for terms in objectives:
            value, least = (
                _value_of(terms, values),
                sum(each * self._limits[i] for i, each in terms.items() if each < 0),
            )
            if value == least:
                found.append(ObjectiveValue(value, value))
            else:
                before = solver.getRunTime()  # of all runs together
                _run_solver(solver, terms, values, left / 2)
                left -= min(left / 2, solver.getRunTime() - before)
                values = [round(value) for value in solver.getSolution().col_value]
                value, bound = _value_of(terms, values), solver.getInfo().mip_dual_bound
                found.append(ObjectiveValue(value, math.ceil(max(least, bound - TOLERANCE))))
            _add_rows(solver, [LinearRow(terms, -math.inf, value)] if terms else [])
        return ProgramSolution(tuple(values), tuple(found), seconds - left)

    def _load_solver(self) -> highspy.Highs:
        """Return a solver with the variables and constraints."""
        try:
            import highspy
            import numpy as np
        except ImportError as error:
            raise SolverError("needs HiGHS, which is not installed") from error
        solver, count = highspy.Highs(), len(self._limits)  # type: ignore[no-untyped-call]  # it has no annotations
        settings: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "mip_rel_gap": 0.0,
            "presolve": "off",
        }
        for name, setting in settings.items():
            solver.setOptionValue(name, setting)
        solver.addVars(count, [0.0] * count, list(map(float, self._limits)))
        integers = np.full(count, int(highspy.HighsVarType.kInteger), np.uint8)
        solver.changeColsIntegrality(count, np.arange(count, dtype=np.int32), integers)
        _add_rows(solver, self._rows)
        return solver


def _value_of(terms: LinearTerms, values: Sequence[int]) -> int:
    return sum(factor * values[index] for index, factor in terms.items())


def _run_solver(solver: highspy.Highs, terms: LinearTerms, start: Sequence[int], seconds: float) -> None:
    """Minimize an objective, starting with a solution."""
    import highspy

    count, known = len(start), highspy.HighsSolution()
    solver.changeColsCost(count, list(range(count)), [float(terms.get(index, 0)) for index in range(count)])
    known.col_value = list(map(float, start))
    solver.setSolution(known)
    solver.setOptionValue("time_limit", seconds)
    solver.run()


def _add_rows(solver: highspy.Highs, rows: Sequence[LinearRow]) -> None:
    """Add constraints."""
    ends = list(accumulate(len(row.terms) for row in rows))
    solver.addRows(
        len(rows),
        [row.lower for row in rows],
        [row.upper for row in rows],
        ends[-1] if ends else 0,
        [0, *ends[:-1]] if ends else [],
        [index for row in rows for index in row.terms],
        [float(factor) for row in rows for factor in row.terms.values()],
    )
