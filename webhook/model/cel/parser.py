"""Parse the text of an expression.

Nesting is limited as in cel-go: each rule of its grammar, and each of some kinds of parts, at most 250 deep. Beyond
that, an expression of more than `MAX_NODES` parts, macros expanded, is not evaluated here.

Source: `parser/gen/CEL.g4` and `parser/parser.go` of cel-go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from webhook.model.cel.cel_errors import CelSyntaxError, UnmodeledExpressionError
from webhook.model.cel.macros import expand_macro
from webhook.model.cel.syntax_tree import (
    ExpressionNode,
    FieldSelection,
    FunctionCall,
    Identifier,
    ListLiteral,
    LiteralValue,
    MapLiteral,
    qualified_name,
)
from webhook.model.cel.tokens import Token, literal_value, tokenize_expression

MAX_DEPTH = 250
MAX_NODES = 2000
"""Parts of an expression that is evaluated here: with the limit of tokens, any text compiles in less than 50 ms."""

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")

_RELATIONS = frozenset({"<", "<=", ">=", ">", "==", "!=", "in"})
_PRODUCTS = frozenset({"*", "/", "%"})
_SUMS = frozenset({"+", "-"})
_LITERALS = frozenset({"int", "uint", "double", "string", "bytes"})
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "null",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)


def parse_expression(text: str) -> ExpressionNode:
    """Return the syntax tree of an expression, macros expanded.

    Raises:
        CelSyntaxError: The API server does not compile it.
        UnmodeledExpressionError: It is not evaluated here.
    """
    tokens = tokenize_expression(text)
    _check_brackets(tokens)
    return _ExpressionParser(tokens).parse()


def _check_brackets(tokens: Sequence[Token]) -> None:
    """Raise CelSyntaxError for brackets nested too deeply, each of which contains an expression.

    The parser cannot say so itself: it would exceed the limit of Python.
    """
    depth = 0
    for token in tokens:
        depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
        if depth > MAX_DEPTH:
            raise CelSyntaxError(f"expression recursion limit exceeded: {MAX_DEPTH}", token.start)


class _ExpressionParser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depths = {"expression": 0, "relation": 0, "calculation": 0}

    def parse(self) -> ExpressionNode:
        node = self._parse_expression()
        if self._next.kind != "end":
            raise self._unexpected_token()
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._tokens[self._position]
        self._position += 1
        return token

    def _accept(self, kind: str) -> Token | None:
        return self._take() if self._next.kind == kind else None

    def _expect(self, kind: str) -> Token:
        if self._next.kind != kind:
            raise self._unexpected_token(kind)
        return self._take()

    def _unexpected_token(self, wanted: str = "") -> CelSyntaxError:
        found = repr(self._next.text) if self._next.text else "the end"
        reason = f"expected {wanted!r}, found {found}" if wanted else f"unexpected {found}"
        return CelSyntaxError(reason, self._next.start)

    def _note_span(self, node: ExpressionNode, start: int) -> ExpressionNode:
        """Note where a part stands, and check its size."""
        node.start, node.end = start, self._tokens[self._position - 1].end
        if node.depth > MAX_DEPTH:
            raise CelSyntaxError("max recursion depth exceeded", start)
        if node.nodes > MAX_NODES:
            raise UnmodeledExpressionError(f"it has more than {MAX_NODES} parts")
        return node

    def _parse_nested(self, rule: str, parse: Callable[[], ExpressionNode]) -> ExpressionNode:
        """Parse with a rule of the grammar, one level deeper."""
        start = self._next.start
        self._depths[rule] += 1
        if self._depths[rule] > MAX_DEPTH:
            raise CelSyntaxError(f"expression recursion limit exceeded: {MAX_DEPTH}", start)
        node = self._note_span(parse(), start)
        self._depths[rule] -= 1
        return node

    def _parse_expression(self) -> ExpressionNode:
        return self._parse_nested("expression", self._parse_conditional)

    def _parse_conditional(self) -> ExpressionNode:
        condition = self._parse_logical("||", self._parse_and)
        if not self._accept("?"):
            return condition
        if_true = self._parse_logical("||", self._parse_and)
        self._expect(":")
        return FunctionCall("_?_:_", condition, if_true, self._parse_expression(), nests=True)

    def _parse_and(self) -> ExpressionNode:
        return self._parse_logical("&&", self._parse_relation)

    def _parse_logical(self, operator: str, parse: Callable[[], ExpressionNode]) -> ExpressionNode:
        start = self._next.start
        terms = [parse()]
        while self._accept(operator):
            terms.append(parse())
        return self._note_span(_balance_terms(f"_{operator}_", terms), start) if len(terms) > 1 else terms[0]

    def _parse_relation(self) -> ExpressionNode:
        return self._parse_nested("relation", self._parse_relations)

    def _parse_relations(self) -> ExpressionNode:
        start = self._next.start
        node = self._parse_nested("calculation", self._parse_sums)
        while self._next.kind in _RELATIONS:
            operator = self._take().kind
            right = self._parse_nested("relation", lambda: self._parse_nested("calculation", self._parse_sums))
            function = "@in" if operator == "in" else f"_{operator}_"
            node = self._note_span(FunctionCall(function, node, right, nests=True), start)
        return node

    def _parse_sums(self) -> ExpressionNode:
        start = self._next.start
        node = self._parse_products()
        while self._next.kind in _SUMS:
            operator = self._take().kind
            right = self._parse_nested("calculation", self._parse_products)
            node = self._note_span(FunctionCall(f"_{operator}_", node, right, nests=True), start)
        return node

    def _parse_products(self) -> ExpressionNode:
        start = self._next.start
        node = self._parse_unary()
        while self._next.kind in _PRODUCTS:
            operator = self._take().kind
            right = self._parse_nested("calculation", self._parse_unary)
            node = self._note_span(FunctionCall(f"_{operator}_", node, right, nests=True), start)
        return node

    def _parse_unary(self) -> ExpressionNode:
        start = self._next.start
        operator = self._next.kind
        if operator not in ("!", "-") or self._is_negative_number():
            return self._parse_member()
        times = 0
        while self._accept(operator):
            times += 1
        node = self._parse_member()
        if times % 2 == 0:
            return node
        return self._note_span(FunctionCall("!_" if operator == "!" else "-_", node), start)

    def _is_negative_number(self) -> bool:
        return self._next.kind == "-" and self._tokens[self._position + 1].kind in ("int", "double")

    def _parse_member(self) -> ExpressionNode:
        start = self._next.start
        node = self._parse_primary()
        while True:
            if self._accept("."):
                node = self._parse_field(node)
            elif self._accept("["):
                operator = "_[?_]" if self._accept("?") else "_[_]"
                node = FunctionCall(operator, node, self._parse_expression(), nests=True)
                self._expect("]")
            elif self._next.kind == "{" and qualified_name(node) is not None:
                raise UnmodeledExpressionError("it makes a protobuf message")
            else:
                return node
            self._note_span(node, start)

    def _parse_field(self, operand: ExpressionNode) -> ExpressionNode:
        is_optional = self._accept("?") is not None
        if self._next.kind == "escaped":
            raise CelSyntaxError("unsupported syntax: '`'", self._next.start)
        name = self._expect("name")
        if is_optional:
            field = LiteralValue(name.text, start=name.start, end=name.end)
            return FunctionCall("_?._", operand, field)
        if not self._accept("("):
            return FieldSelection(operand, name.text)
        arguments = self._parse_arguments()
        expanded = expand_macro(name.text, operand, arguments, name.start)
        if expanded is None:
            return FunctionCall(name.text, *arguments, target=operand, nests=True)
        expanded.depth = max(expanded.depth, operand.depth + 1)
        return expanded

    def _parse_arguments(self) -> tuple[ExpressionNode, ...]:
        arguments: list[ExpressionNode] = []
        if not self._accept(")"):
            arguments.append(self._parse_expression())
            while self._accept(","):
                arguments.append(self._parse_expression())
            self._expect(")")
        return tuple(arguments)

    def _parse_primary(self) -> ExpressionNode:
        token = self._take()
        if token.kind in _LITERALS:
            return LiteralValue(literal_value(token), start=token.start, end=token.end)
        if token.kind in _CONSTANTS:
            return LiteralValue(_CONSTANTS[token.kind], start=token.start, end=token.end)
        if token.kind == "-" and self._next.kind in ("int", "double"):
            number = self._take()
            return LiteralValue(literal_value(number, negative=True), start=token.start, end=number.end)
        if token.kind in _COMPOSITES:
            return _COMPOSITES[token.kind](self)
        if token.kind == "." and self._next.kind == "name":
            return self._parse_name(self._take(), ".")
        if token.kind == "name":
            return self._parse_name(token, "")
        self._position -= 1
        raise self._unexpected_token()

    def _parse_name(self, token: Token, dot: str) -> ExpressionNode:
        if token.text in _RESERVED:
            raise CelSyntaxError(f"reserved identifier: {token.text}", token.start)
        if not self._accept("("):
            return Identifier(dot + token.text, start=token.start, end=token.end)
        arguments = self._parse_arguments()
        expanded = expand_macro(dot + token.text, None, arguments, token.start)
        return FunctionCall(dot + token.text, *arguments) if expanded is None else expanded

    def _parse_parentheses(self) -> ExpressionNode:
        node = self._parse_expression()
        self._expect(")")
        return node

    def _parse_list(self) -> ExpressionNode:
        elements: list[ExpressionNode] = []
        optional: set[int] = set()
        while self._next.kind not in ("]", ","):
            if self._accept("?"):
                optional.add(len(elements))
            elements.append(self._parse_expression())
            if self._next.kind != "," or self._tokens[self._position + 1].kind == "]":
                break
            self._take()
        self._accept(",")
        self._expect("]")
        return ListLiteral(tuple(elements), frozenset(optional))

    def _parse_map(self) -> ExpressionNode:
        keys: list[ExpressionNode] = []
        values: list[ExpressionNode] = []
        optional: set[int] = set()
        while self._next.kind not in ("}", ","):
            if self._accept("?"):
                optional.add(len(keys))
            keys.append(self._parse_expression())
            self._expect(":")
            values.append(self._parse_expression())
            if self._next.kind != "," or self._tokens[self._position + 1].kind == "}":
                break
            self._take()
        self._accept(",")
        self._expect("}")
        return MapLiteral(tuple(keys), tuple(values), frozenset(optional))


_COMPOSITES = {
    "(": _ExpressionParser._parse_parentheses,
    "[": _ExpressionParser._parse_list,
    "{": _ExpressionParser._parse_map,
}


def _balance_terms(function: str, terms: list[ExpressionNode]) -> ExpressionNode:
    """Return a balanced tree of calls over terms."""
    if len(terms) == 1:
        return terms[0]
    middle = (len(terms) + 1) // 2
    return FunctionCall(function, _balance_terms(function, terms[:middle]), _balance_terms(function, terms[middle:]))
