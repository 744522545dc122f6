"""The Common Expression Language as the API server compiles and evaluates it, for expressions about devices.

An expression is parsed, type-checked, given a cost estimate, and compiled to Python functions: the steps, limits and
rules of cel-go 0.26 with the libraries of Kubernetes. Google's C++ engine, which evaluates match conditions, has
another nesting limit, no cost estimate and no bound in time, so it would accept and reject other expressions.

Not modeled: times, URLs, IP addresses, named formats, `format()` and protobuf messages, which no device publishes. An
expression with one of them raises `UnmodeledExpressionError`.

Source: `github.com/google/cel-go` 0.26.0 and `k8s.io/apiserver/pkg/cel` 0.36.3.
"""
