"""Check the types of an expression, and choose the overloads of its functions.

Source: `checker/checker.go` and `cel/validator.go` of cel-go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webhook.model.cel.cel_errors import CelSyntaxError, UnmodeledExpressionError
from webhook.model.cel.cel_types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    CelType,
    TypeBindings,
    are_equivalent,
    describe_type,
    is_dynamic,
    list_of,
    map_of,
    most_general,
    optional_of,
    type_parameter,
    unwrap_optional,
)
from webhook.model.cel.declarations import (
    DEVICE,
    DEVICE_FIELDS,
    FUNCTIONS,
    TYPE_NAMES,
    UNMODELED,
    UNMODELED_NAMES,
    FunctionOverload,
)
from webhook.model.cel.syntax_tree import (
    Comprehension,
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    ListLiteral,
    LiteralValue,
    MapLiteral,
    qualified_name,
    walk_expression,
)
from webhook.model.cel.values import UnsignedInteger

_LITERAL_TYPES: Mapping[type, CelType] = {
    bool: BOOL, bytes: BYTES, float: DOUBLE, int: INT, type(None): NULL, str: STRING, UnsignedInteger: UINT,
}  # fmt: skip


def check_expression(root: ExpressionNode) -> None:
    """Note the type of every part of an expression on variable `device`, and the overloads of every call.

    Raises:
        CelSyntaxError: The types do not agree.
        UnmodeledExpressionError: It calls a function that is not evaluated here.
    """
    checker = _TypeChecker()
    checker.check(root)
    nodes = list(walk_expression(root))
    for node in nodes:
        node.type = checker.bindings.substitute(node.type, to_dyn=True)
    for node in nodes:
        if isinstance(node, ListLiteral):
            _check_homogeneous(node.elements, node.optional)
        elif isinstance(node, MapLiteral):
            _check_homogeneous(node.keys, frozenset())
            _check_homogeneous(node.values, node.optional)


class _TypeChecker:
    def __init__(self) -> None:
        self.bindings = TypeBindings()
        self._scopes: list[dict[str, CelType]] = [{"device": DEVICE}]
        self._variables = 0

    def check(self, node: ExpressionNode) -> CelType:
        """Check a part of an expression, and return its type."""
        node.type = self._type_of(node)
        return node.type

    def _type_of(self, node: ExpressionNode) -> CelType:
        if isinstance(node, LiteralValue):
            return _LITERAL_TYPES[type(node.value)]
        if isinstance(node, Identifier):
            return self._check_identifier(node)
        if isinstance(node, FieldSelection):
            return self._check_selection(node)
        if isinstance(node, FunctionCall):
            return self._check_call(node)
        if isinstance(node, ListLiteral):
            return list_of(self._check_elements(node.elements, node.optional))
        if isinstance(node, MapLiteral):
            key_type = self._check_elements(node.keys, frozenset())
            return map_of(key_type, self._check_elements(node.values, node.optional))
        assert isinstance(node, Comprehension)
        return self._check_comprehension(node)

    def _check_identifier(self, node: Identifier) -> CelType:
        node.name = node.name.removeprefix(".")
        found = self._find_name(node.name)
        if found is None:
            raise CelSyntaxError(f"undeclared reference to '{node.name}'", node.start)
        return found

    def _find_name(self, name: str) -> CelType | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name.startswith(UNMODELED_NAMES):
            raise UnmodeledExpressionError(f"it names {name}")
        return TYPE_NAMES.get(name)

    def _check_selection(self, node: FieldSelection) -> CelType:
        name = qualified_name(node)
        if name is not None and name.removeprefix(".").startswith(UNMODELED_NAMES):
            self._find_name(name.removeprefix("."))
        result = self._field_type(node, node.operand, node.field)
        return BOOL if node.test_only else self.bindings.substitute(result)

    def _field_type(
        self, node: ExpressionNode, operand: ExpressionNode, field: str, *, is_optional: bool = False
    ) -> CelType:
        operand_type, was_optional = unwrap_optional(self.bindings.substitute(self.check(operand)))
        if operand_type.kind == "map":
            result = operand_type.parameters[1]
        elif operand_type == DEVICE:
            if field not in DEVICE_FIELDS:
                raise CelSyntaxError(f"undefined field '{field}'", node.start)
            result = DEVICE_FIELDS[field]
        elif operand_type.kind == "object":
            raise CelSyntaxError(f"undefined field '{field}'", node.start)
        elif operand_type.kind == "parameter":
            self.bindings.is_assignable(DYN, operand_type)
            result = DYN
        elif is_dynamic(operand_type):
            result = DYN
        else:
            raise CelSyntaxError(f"type {operand_type.kind} does not support field selection", node.start)
        return optional_of(result) if was_optional or is_optional else result

    def _check_call(self, node: FunctionCall) -> CelType:
        if node.function == "_?._":
            return self._check_optional_selection(node)
        for argument in node.arguments:
            self.check(argument)
        if node.target is None:
            node.function = node.function.removeprefix(".")
            return self._resolve(node, (), "function")
        prefix = qualified_name(node.target)
        if prefix is not None and _is_function(name := f"{prefix.removeprefix('.')}.{node.function}"):
            node.function, node.target = name, None
            return self._resolve(node, (), "function")
        return self._resolve(node, (self.check(node.target),), "member function")

    def _check_optional_selection(self, node: FunctionCall) -> CelType:
        operand, field = node.arguments
        assert isinstance(field, LiteralValue)
        field.type = STRING
        node.overloads = ("select_optional_field",)
        return self.bindings.substitute(self._field_type(node, operand, str(field.value), is_optional=True))

    def _resolve(self, node: FunctionCall, target_type: tuple[CelType, ...], kind: str) -> CelType:
        """Choose the overloads that may apply, and return the type of the result."""
        if node.function in UNMODELED:
            raise UnmodeledExpressionError(f"it calls {node.function}()")
        if not _is_function(node.function):
            raise CelSyntaxError(f"undeclared reference to {kind} '{node.function}'", node.start)
        types = (*target_type, *(argument.type for argument in node.arguments))
        results: list[CelType] = []
        names: list[str] = []
        for overload in FUNCTIONS[node.function]:
            if overload.is_member == bool(target_type) and len(overload.arguments) == len(types):
                result = self._overload_result(overload, types)
                if result is not None:
                    names.append(overload.name)
                    results.append(result)
        if not results:
            found = ", ".join(describe_type(self.bindings.substitute(one, to_dyn=True)) for one in types)
            raise CelSyntaxError(f"found no matching overload for '{node.function}' applied to ({found})", node.start)
        node.overloads = tuple(names)
        return _join_results(results)

    def _overload_result(self, overload: FunctionOverload, types: Sequence[CelType]) -> CelType | None:
        """Return the type of the result if an overload may apply."""
        arguments, result = overload.arguments, overload.result
        if overload.has_parameters:
            fresh = TypeBindings()
            for name in _parameter_names((*arguments, result)):
                fresh.bind(type_parameter(name), self._new_variable())
            arguments = tuple(map(fresh.substitute, arguments))
            result = fresh.substitute(result)
        if not self.bindings.are_assignable(types, arguments):
            return None
        return self.bindings.substitute(result)

    def _check_elements(self, nodes: Sequence[ExpressionNode], optional: frozenset[int]) -> CelType:
        """Check the elements of a list, or keys or values of a map, and return the type that all have."""
        joined: CelType | None = None
        for index, node in enumerate(nodes):
            found = self.check(node)
            if index in optional:
                found, is_optional = unwrap_optional(found)
                if not is_optional and not is_dynamic(found):
                    raise CelSyntaxError(f"expected an optional value, found {describe_type(found)}", node.start)
            joined = found if joined is None else self._join_types(node, joined, found)
        return self._new_variable() if joined is None else joined

    def _join_types(self, node: ExpressionNode, before: CelType, found: CelType) -> CelType:
        if self.bindings.is_assignable(before, found):
            return most_general(before, found)
        raise CelSyntaxError(f"expected type {describe_type(before)} but found {describe_type(found)}", node.start)

    def _check_comprehension(self, node: Comprehension) -> CelType:
        range_type = self.bindings.substitute(self.check(node.iteration_range))
        range_type = self.bindings.substitute(range_type)
        accumulator_type = self.check(node.initial)
        self._scopes.append({node.accumulator: accumulator_type})
        self._scopes.append(self._loop_scope(node, self.bindings.substitute(range_type)))
        self.check(node.condition)
        self._expect_type(node.condition, BOOL)
        self.check(node.step)
        self._expect_type(node.step, accumulator_type)
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return self.bindings.substitute(result)

    def _loop_scope(self, node: Comprehension, range_type: CelType) -> dict[str, CelType]:
        first, second = self._variable_types(node, range_type)
        scope = {node.variable: first}
        if node.second_variable:
            scope[node.second_variable] = second
        return scope

    def _variable_types(self, node: Comprehension, range_type: CelType) -> tuple[CelType, CelType]:
        if range_type.kind == "list":
            element = range_type.parameters[0]
            return (INT, element) if node.second_variable else (element, ERROR)
        if range_type.kind == "map":
            key, value = range_type.parameters
            return key, value
        if range_type.kind not in ("dyn", "error", "parameter"):
            reason = f"expression of type {describe_type(range_type)} cannot be range of a comprehension"
            raise CelSyntaxError(reason, node.iteration_range.start)
        self.bindings.is_assignable(DYN, range_type)
        return DYN, DYN

    def _expect_type(self, node: ExpressionNode, expected: CelType) -> None:
        if not self.bindings.is_assignable(expected, node.type):
            found = describe_type(self.bindings.substitute(node.type, to_dyn=True))
            raise CelSyntaxError(f"expected type {describe_type(expected)} but found {found}", node.start)

    def _new_variable(self) -> CelType:
        self._variables += 1
        return type_parameter(f"_var{self._variables}")


def _is_function(name: str) -> bool:
    return name in FUNCTIONS or name in UNMODELED


def _parameter_names(types: Sequence[CelType]) -> set[str]:
    found: set[str] = set()
    for one in types:
        if one.kind == "parameter":
            found.add(one.name)
        found |= _parameter_names(one.parameters)
    return found


def _join_results(results: Sequence[CelType]) -> CelType:
    joined = results[0]
    for result in results[1:]:
        if not is_dynamic(joined) and result != joined:
            joined = DYN
    return joined


def _element_type(node: ExpressionNode, *, is_optional: bool) -> CelType:
    """Return the type of an element, or of the value of an optional one; without a static type, cel-go fails."""
    if is_optional and not node.type.parameters:
        raise CelSyntaxError(f"expected an optional value, found {describe_type(node.type)}", node.start)
    return node.type.parameters[0] if is_optional else node.type


def _check_homogeneous(nodes: Sequence[ExpressionNode], optional: frozenset[int]) -> None:
    """Check that all elements have one type: no mix with values of unknown type either."""
    types = [_element_type(node, is_optional=index in optional) for index, node in enumerate(nodes)]
    for node, found in zip(nodes, types, strict=True):
        if not are_equivalent(types[0], found):
            reason = f"expected type '{describe_type(types[0])}' but found '{describe_type(found)}'"
            raise CelSyntaxError(reason, node.start)
