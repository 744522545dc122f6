"""Estimate the worst cost of an expression, by which the API server rejects selectors that are too complex.

Sizes and costs are ranges, saturated at 2^64 - 1: what has no known size makes an expression too complex.

Source: `checker/cost.go` and `ext` of cel-go, `pkg/cel/library/cost.go` of `k8s.io/apiserver`, `cel/compile.go` of
`k8s.io/dynamic-resource-allocation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from webhook.model.cel.cel_types import OPTIONAL_NAME, CelType
from webhook.model.cel.declarations import COMPARABLE, QUANTITY, SEMVER
from webhook.model.cel.syntax_tree import (
    Comprehension,
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    ListLiteral,
    LiteralValue,
    MapLiteral,
)

MAX_UINT64: Final = (1 << 64) - 1
_TEXT_FACTOR = 0.1
_PATTERN_FACTOR = 0.25
_LIST_COST, _MAP_COST = 10, 30


class CostRange(NamedTuple):
    """The least and most of a size or cost."""

    least: int
    most: int

    def plus(self, other: CostRange) -> CostRange:
        """Return the sum."""
        return CostRange(_saturate(self.least + other.least), _saturate(self.most + other.most))

    def times(self, other: CostRange) -> CostRange:
        """Return the product."""
        return CostRange(_saturate(self.least * other.least), _saturate(self.most * other.most))

    def scale_by(self, factor: float) -> CostRange:
        """Return the product with a factor, rounded up."""
        return CostRange(_scale(self.least, factor), _scale(self.most, factor))

    def union(self, other: CostRange) -> CostRange:
        """Return the range that covers both."""
        return CostRange(min(self.least, other.least), max(self.most, other.most))


def _saturate(value: int) -> int:
    return min(value, MAX_UINT64)


def _scale(value: int, factor: float) -> int:
    product = math.ceil(float(value) * factor)
    return MAX_UINT64 if product >= 1 << 64 else product


def _exactly(value: int) -> CostRange:
    return CostRange(value, value)


_NOTHING, _ONE = _exactly(0), _exactly(1)
_UNKNOWN = CostRange(0, MAX_UINT64)


class EntrySizes(NamedTuple):
    """Sizes of the keys and values of a list or map."""

    kind: str
    key: CostRange
    value: CostRange


class _SharedPath:
    """A path of names from a variable, kept as Go keeps a slice.

    Paths that begin alike share memory: one that is extended in place changes the last name of those that were
    extended from the same one before. That is a fault of cel-go, and part of its estimates.
    """

    def __init__(self, memory: list[str], length: int) -> None:
        self._memory = memory
        self._length = length

    def extend(self, name: str) -> _SharedPath:
        """Return the path with one more name, in the same memory if there is room."""
        length = self._length
        if length == len(self._memory):
            return _SharedPath([*self._memory, name, *[""] * max(0, length - 1)], length + 1)
        self._memory[length] = name
        return _SharedPath(self._memory, length + 1)

    def names(self) -> list[str]:
        """Return the names as they are now."""
        return self._memory[: self._length]


class _LocalVariable(NamedTuple):
    path: _SharedPath
    size: CostRange | None = None
    entries: EntrySizes | None = None


class _CallCost(NamedTuple):
    cost: CostRange
    result: CostRange | None = None


class _DeclaredType(NamedTuple):
    """The most elements that a part of variable `device` has, and its own parts."""

    most: int = 0
    fields: Mapping[str, _DeclaredType] = {}
    key: _DeclaredType | None = None
    element: _DeclaredType | None = None
    is_attribute: bool = False


_ATTRIBUTE = _DeclaredType(64, is_attribute=True)
_DOMAIN, _NAME = _DeclaredType(63), _DeclaredType(32)


def _domain_type(element: _DeclaredType) -> _DeclaredType:
    return _DeclaredType(32, key=_DOMAIN, element=_DeclaredType(32, key=_NAME, element=element))


_DEVICE = _DeclaredType(
    fields={
        "driver": _DeclaredType(63),
        "attributes": _domain_type(_ATTRIBUTE),
        "capacity": _domain_type(_DeclaredType()),
        "allowMultipleAllocations": _DeclaredType(1),
    }
)


def estimate_cost(root: ExpressionNode) -> int:
    """Return the most that evaluating a checked expression may cost."""
    return _CostEstimator().cost(root).most


class _CostEstimator:
    def __init__(self) -> None:
        self._variables: dict[str, list[_LocalVariable]] = {}
        self._paths: dict[int, _SharedPath] = {}
        self._sizes: dict[int, CostRange] = {}
        self._entries: dict[int, EntrySizes] = {}

    def cost(self, node: ExpressionNode) -> CostRange:
        """Return the cost of a part of an expression."""
        if isinstance(node, Identifier):
            variable = self._variable(node.name)
            self._paths[id(node)] = _SharedPath([node.name], 1) if variable is None else variable.path
            return _ONE
        if isinstance(node, FieldSelection):
            return self._selection_cost(node)
        if isinstance(node, FunctionCall):
            return self._call_cost(node)
        if isinstance(node, ListLiteral):
            return self._list_cost(node)
        if isinstance(node, MapLiteral):
            return self._map_cost(node)
        if isinstance(node, Comprehension):
            return self._bind_cost(node) if node.is_binding else self._loop_cost(node)
        return _NOTHING

    def _selection_cost(self, node: FieldSelection) -> CostRange:
        cost = self.cost(node.operand)
        if node.test_only:
            return cost
        self._paths[id(node)] = self._path(node.operand).extend(node.field)
        return cost.plus(_ONE) if node.operand.type.kind in ("map", "object", "parameter") else cost

    def _list_cost(self, node: ListLiteral) -> CostRange:
        cost = _exactly(_LIST_COST)
        for element in node.elements:
            cost = cost.plus(self.cost(element))
        self._entries[id(node)] = EntrySizes("list", _ONE, self._union_of_sizes(node.elements))
        return cost

    def _map_cost(self, node: MapLiteral) -> CostRange:
        cost = _exactly(_MAP_COST)
        for part in node.children():
            cost = cost.plus(self.cost(part))
        self._entries[id(node)] = EntrySizes("map", self._union_of_sizes(node.keys), self._union_of_sizes(node.values))
        return cost

    def _union_of_sizes(self, nodes: Sequence[ExpressionNode]) -> CostRange:
        sizes = [self.size_or_unknown(node) for node in nodes]
        return CostRange(min(one.least for one in sizes), max(one.most for one in sizes)) if sizes else _NOTHING

    def _bind_cost(self, node: Comprehension) -> CostRange:
        cost = self.cost(node.iteration_range).plus(self.cost(node.initial))
        self._push(node.accumulator, self._variable_of(node.initial))
        cost = cost.plus(self.cost(node.result))
        self._pop(node.accumulator)
        self._copy_sizes(node, node.result)
        return cost

    def _loop_cost(self, node: Comprehension) -> CostRange:
        cost = self.cost(node.iteration_range).plus(self.cost(node.initial))
        self._push(node.accumulator, self._variable_of(node.initial))
        self._push_loop_variables(node)
        each = self.cost(node.condition).plus(self.cost(node.step))
        for name in filter(None, (node.variable, node.second_variable)):
            self._pop(name)
        cost = cost.plus(self.cost(node.result))
        self._pop(node.accumulator)
        count = self.size_or_unknown(node.iteration_range)
        if isinstance(node.initial, LiteralValue):
            self._set_size(node, self.size(node.initial))
        elif isinstance(node.initial, (ListLiteral, MapLiteral)):
            self._set_size(node, count)
            self._set_entries(node, self.entries(node.step))
        return cost.plus(count.times(each))

    def _push_loop_variables(self, node: Comprehension) -> None:
        entries = self.entries(node.iteration_range)
        is_list = (entries.kind if entries else node.iteration_range.type.kind) == "list"
        path = self._path(node.iteration_range)
        key_size, value_size = (entries.key, entries.value) if entries else (None, None)
        key_name, value_name = ("@indices", "@items") if is_list else ("@keys", "@values")
        if node.second_variable or not is_list:
            self._push(node.variable, _LocalVariable(path.extend(key_name), key_size))
        if node.second_variable or is_list:
            name = node.second_variable or node.variable
            self._push(name, _LocalVariable(path.extend(value_name), value_size))

    def _call_cost(self, node: FunctionCall) -> CostRange:
        if node.function == "dyn":
            cost = self.cost(node.arguments[0]).plus(_ONE)
            self._copy_sizes(node, node.arguments[0])
            return cost
        costs = [self.cost(argument) for argument in node.arguments]
        target_cost = _NOTHING if node.target is None else self.cost(node.target)
        call_cost = CostRange(MAX_UINT64, 0)
        result: CostRange | None = None
        for overload in node.overloads:
            one = self._overload_cost(node, overload, costs)
            call_cost = call_cost.union(one.cost)
            if one.result is not None:
                result = one.result if result is None else result.union(one.result)
            if overload in _INDEXES:
                entries = self.entries(node.arguments[0])
                result = entries.value if entries else None
                self._paths[id(node)] = self._path(node.arguments[0]).extend(_INDEXES[overload])
            if result is None:
                result = self.size(node)
        self._set_size(node, result)
        return target_cost.plus(call_cost)

    def _overload_cost(self, node: FunctionCall, overload: str, costs: Sequence[CostRange]) -> _CallCost:
        total = _NOTHING
        for cost in costs:
            total = total.plus(cost)
        estimate = _OVERLOAD_COSTS.get(overload) or _FUNCTION_COSTS.get(node.function)
        found = estimate(self, node) if estimate is not None else None
        if found is None:
            found = self._standard_cost(node, overload, costs)
            if overload in _WITHOUT_ARGUMENTS:
                return found
        return _CallCost(found.cost.plus(total), found.result)

    def _standard_cost(self, node: FunctionCall, overload: str, costs: Sequence[CostRange]) -> _CallCost:
        """Return the cost of a call by cel-go's own rules."""
        sizes = [self.size_or_unknown(argument) for argument in node.arguments]
        target = _UNKNOWN if node.target is None else self.size_or_unknown(node.target)
        if overload in ("string_to_bytes", "bytes_to_string"):
            size = sizes[0]
            grown = CostRange(size.least, size.most * 4 & MAX_UINT64)
            shrunk = CostRange(size.least // 4, size.most)
            return _CallCost(size.scale_by(_TEXT_FACTOR), grown if overload == "string_to_bytes" else shrunk)
        if overload == "strings_quote":
            size = sizes[0]
            result = CostRange(size.least + 2 & MAX_UINT64, size.most * 2 + 2 & MAX_UINT64)
            return _CallCost(size.scale_by(_TEXT_FACTOR), result)
        if overload in ("starts_with_string", "ends_with_string"):
            return _CallCost(sizes[0].scale_by(_TEXT_FACTOR))
        if overload == "in_list":
            return _CallCost(sizes[1].scale_by(1))
        if overload == "matches_string":
            return _CallCost(_pattern_cost(target, sizes[0]))
        if overload == "contains_string":
            return _CallCost(target.scale_by(_TEXT_FACTOR).times(sizes[0].scale_by(_TEXT_FACTOR)))
        if overload in ("logical_or", "logical_and"):
            return _CallCost(CostRange(costs[0].least, costs[0].plus(costs[1]).most))
        if overload == "conditional":
            self._set_entries(node, self._joined_entries(node.arguments[1], node.arguments[2]))
            return _CallCost(costs[0].plus(costs[1].union(costs[2])), sizes[1].union(sizes[2]))
        if overload in ("add_string", "add_bytes", "add_list"):
            self._set_entries(node, self._joined_entries(*node.arguments))
            result = sizes[0].plus(sizes[1])
            return _CallCost(_ONE if overload == "add_list" else result.scale_by(_TEXT_FACTOR), result)
        if overload in _COMPARISONS:
            most = min(sizes[0].most, sizes[1].most)
            return _CallCost(CostRange(1 if most else 0, most).scale_by(_TEXT_FACTOR))
        return _CallCost(_ONE)

    def _joined_entries(self, one: ExpressionNode, other: ExpressionNode) -> EntrySizes | None:
        first, second = self.entries(one), self.entries(other)
        if first is None or second is None:
            return None
        return EntrySizes(first.kind, first.key.union(second.key), first.value.union(second.value))

    def size_or_unknown(self, node: ExpressionNode) -> CostRange:
        """Return the size of a part's value; from 0 to the largest if it is not known."""
        return self.size(node) or _UNKNOWN

    def size(self, node: ExpressionNode) -> CostRange | None:
        """Return the size of a part's value if it is known."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        size = _literal_size(node)
        if size is not None:
            return size
        size = _declared_size(self._path(node).names())
        if size is not None:
            self._sizes[id(node)] = size
            return size
        if _is_scalar(node.type):
            return _ONE
        variable = self._variable(node.name) if isinstance(node, Identifier) else None
        return None if variable is None else variable.size

    def entries(self, node: ExpressionNode) -> EntrySizes | None:
        """Return the sizes of keys and values of a part's value if they are known."""
        if id(node) in self._entries:
            return self._entries[id(node)]
        variable = self._variable(node.name) if isinstance(node, Identifier) else None
        return None if variable is None else variable.entries

    def element_size(self, node: ExpressionNode) -> CostRange:
        """Return the size of an element of a list."""
        return _declared_size([*self._path(node).names(), "@items"]) or _UNKNOWN

    def _path(self, node: ExpressionNode) -> _SharedPath:
        variable = self._variable(node.name) if isinstance(node, Identifier) else None
        if variable is not None:
            return variable.path
        return self._paths.get(id(node)) or _SharedPath([], 0)

    def _variable(self, name: str) -> _LocalVariable | None:
        found = self._variables.get(name)
        return found[-1] if found else None

    def _variable_of(self, node: ExpressionNode) -> _LocalVariable:
        return _LocalVariable(self._path(node), self.size(node), self.entries(node))

    def _push(self, name: str, variable: _LocalVariable) -> None:
        self._variables.setdefault(name, []).append(variable)

    def _pop(self, name: str) -> None:
        self._variables[name].pop()

    def _set_size(self, node: ExpressionNode, size: CostRange | None) -> None:
        if size is not None:
            self._sizes[id(node)] = size

    def _set_entries(self, node: ExpressionNode, entries: EntrySizes | None) -> None:
        if entries is not None:
            self._entries[id(node)] = entries

    def _copy_sizes(self, node: ExpressionNode, source: ExpressionNode) -> None:
        self._set_size(node, self.size(source))
        self._set_entries(node, self.entries(source))


_INDEXES = {"index_list": "@items", "index_map": "@values"}
_WITHOUT_ARGUMENTS = frozenset({"logical_or", "logical_and", "conditional"})
"""Overloads that may not evaluate all arguments; their cost includes that of their arguments."""

_COMPARISONS = frozenset(
    {"equals", "not_equals"}
    | {
        f"{order}_{kind}"
        for order in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    }
)


def _literal_size(node: ExpressionNode) -> CostRange | None:
    if isinstance(node, LiteralValue):
        return _exactly(len(node.value)) if isinstance(node.value, (str, bytes)) else _ONE
    if isinstance(node, ListLiteral):
        return _exactly(len(node.elements))
    return _exactly(len(node.keys)) if isinstance(node, MapLiteral) else None


def _declared_size(path: Sequence[str]) -> CostRange | None:
    """Return the size of what a path below variable `device` leads to."""
    found: _DeclaredType | None = _DEVICE if path and path[0] == "device" else None
    for name in path[1:]:
        if found is None:
            return None
        if name in ("@items", "@values"):
            found = found.element
        elif name == "@keys":
            found = found.key
        elif name in found.fields:
            found = found.fields[name]
        else:
            found = found.element if found.element is not None and found.element.is_attribute else None
    return None if found is None else CostRange(0, found.most)


def _is_scalar(one: CelType) -> bool:
    if one.kind == "opaque" and one.name == OPTIONAL_NAME:
        return _is_scalar(one.parameters[0])
    return one.kind in ("bool", "double", "int", "uint")


_FunctionCost = Callable[[_CostEstimator, FunctionCall], _CallCost | None]


def _pattern_cost(text: CostRange, pattern: CostRange) -> CostRange:
    return text.plus(_ONE).scale_by(_TEXT_FACTOR).times(pattern.scale_by(_PATTERN_FACTOR))


def _constant_cost(_: _CostEstimator, __: FunctionCall) -> _CallCost:
    return _CallCost(_ONE)


def _traversal_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    """Return the cost of looking at each element of a list, or at each character of a text."""
    if node.target is None:
        return None
    size = estimator.size_or_unknown(node.target)
    if not node.target.type.parameters:
        return _CallCost(size.scale_by(_TEXT_FACTOR))
    each = _ONE
    if node.target.type.parameters[0].kind in ("string", "bytes"):
        each = each.plus(estimator.element_size(node.target).scale_by(_TEXT_FACTOR))
    return _CallCost(size.times(each))


def _same_size_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    if node.target is None:
        return None
    size = estimator.size_or_unknown(node.target)
    return _CallCost(size.scale_by(_TEXT_FACTOR), size)


def _replace_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    if node.target is None:
        return None
    size = estimator.size_or_unknown(node.target)
    old, new = map(estimator.size_or_unknown, node.arguments[:2])
    most_kept = size.most if old.least == 0 or new.most <= old.least else 0
    least_kept = size.least if old.most == 0 or old.most <= new.least else 0
    most = _saturate(size.most + 1) if old.least == 0 else 0 if new.most <= old.least else size.most / old.least
    least = _saturate(size.least + 1) if old.most == 0 else 0 if old.most <= new.least else size.least / old.most
    count = CostRange(math.ceil(least), math.ceil(most))
    return _CallCost(size.scale_by(2 * _TEXT_FACTOR), count.times(new).plus(CostRange(least_kept, most_kept)))


def _split_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    if node.target is None:
        return None
    size = estimator.size_or_unknown(node.target)
    most = size.most
    if len(node.arguments) > 1 and isinstance(node.arguments[1], LiteralValue):
        most = int(node.arguments[1].value) & MAX_UINT64
    return _CallCost(size.scale_by(2 * _TEXT_FACTOR), CostRange(0, most))


def _join_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    if node.target is None:
        return None
    count = estimator.size_or_unknown(node.target)
    size = count.times(estimator.element_size(node.target)) if node.target.type.parameters else _NOTHING
    if node.arguments:
        separators = CostRange(max(0, count.least - 1), max(0, count.most - 1))
        size = size.plus(estimator.size_or_unknown(node.arguments[0]).times(separators))
    return _CallCost(size.scale_by(_TEXT_FACTOR), size)


def _find_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    if node.target is None:
        return None
    size = estimator.size_or_unknown(node.target)
    cost = _pattern_cost(size, estimator.size_or_unknown(node.arguments[0]))
    return _CallCost(cost, CostRange(0, size.most))


def _parse_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
    return _CallCost(estimator.size_or_unknown(node.arguments[0]).scale_by(_TEXT_FACTOR))


def _equality_cost(_: _CostEstimator, node: FunctionCall) -> _CallCost | None:
    types = {argument.type for argument in node.arguments}
    return _CallCost(_ONE) if types in ({QUANTITY}, {SEMVER}) else None


def _new_list_cost(factor: float, size: CostRange) -> _CallCost:
    return _CallCost(size.scale_by(factor).plus(_ONE).plus(_exactly(_LIST_COST)), size)


def _integer_literal(node: ExpressionNode, default: int) -> int:
    if isinstance(node, LiteralValue) and type(node.value) is int:
        return max(0, node.value)
    return default


def _target_size(estimator: _CostEstimator, node: FunctionCall) -> CostRange:
    assert node.target is not None
    return estimator.size_or_unknown(node.target)


def _slice_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
    start = _integer_literal(node.arguments[0], 0)
    end = _integer_literal(node.arguments[1], _target_size(estimator, node).most)
    return _new_list_cost(1, _exactly(end - start & MAX_UINT64))


def _range_cost(_: _CostEstimator, node: FunctionCall) -> _CallCost:
    return _new_list_cost(1, _exactly(_integer_literal(node.arguments[0], MAX_UINT64)))


def _reverse_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
    return _new_list_cost(1, _target_size(estimator, node))


def _flatten_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
    depth = _integer_literal(node.arguments[0], MAX_UINT64) if node.arguments else 1
    return _new_list_cost(depth, _target_size(estimator, node))


def _distinct_cost(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
    size = _target_size(estimator, node)
    return _new_list_cost(2, size.times(size))


def _sort_cost(kind: str, *, by_keys: bool) -> _FunctionCost:
    factor = 2 + (_TEXT_FACTOR if kind in ("string", "bytes") else 0)

    def estimate(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
        keys = estimator.size_or_unknown(node.arguments[0]) if by_keys else _target_size(estimator, node)
        return _new_list_cost(factor, keys.times(keys))

    return estimate


def _set_cost(factor: float) -> _FunctionCost:
    def estimate(estimator: _CostEstimator, node: FunctionCall) -> _CallCost:
        one, other = map(estimator.size_or_unknown, node.arguments)
        return _CallCost(one.times(other).scale_by(factor).plus(_ONE))

    return estimate


_OVERLOAD_COSTS: Mapping[str, _FunctionCost] = {
    "list_sets_contains_list": _set_cost(1), "list_sets_intersects_list": _set_cost(1),
    "list_sets_equivalent_list": _set_cost(2), "list_slice": _slice_cost, "lists_range": _range_cost,
    "list_reverse": _reverse_cost, "list_flatten": _flatten_cost, "list_flatten_int": _flatten_cost,
    "list_distinct": _distinct_cost, **{f"list_{one}_sort": _sort_cost(one, by_keys=False) for one in COMPARABLE},
    **{f"list_{one}_sortByAssociatedKeys": _sort_cost(one, by_keys=True) for one in COMPARABLE},
}  # fmt: skip

_FUNCTION_COSTS: Mapping[str, _FunctionCost] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal_cost),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _same_size_cost),
    **dict.fromkeys(("find", "findAll"), _find_cost),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _parse_cost),
    **dict.fromkeys(
        ("sign", "asInteger", "isInteger", "asApproximateFloat", "isGreaterThan", "isLessThan", "compareTo", "add",
         "sub", "major", "minor", "patch"), _constant_cost,
    ),
    "replace": _replace_cost, "split": _split_cost, "join": _join_cost, "_==_": _equality_cost,
}  # fmt: skip
