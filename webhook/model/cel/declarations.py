"""The functions and operators of the environment, with the types of their arguments and results.

Source: `common/stdlib/standard.go`, `cel/library.go` and `ext` of cel-go; `pkg/cel/library` and
`pkg/cel/environment` of `k8s.io/apiserver`, which has version 2 of strings and version 3 of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from webhook.model.cel.cel_types import (
    ANY,
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    CelType,
    list_of,
    map_of,
    object_type,
    optional_of,
    type_of,
    type_parameter,
)

QUANTITY = object_type("kubernetes.Quantity")
SEMVER = object_type("kubernetes.Semver")
DEVICE = object_type("kubernetes.DRADevice")


class FunctionOverload(NamedTuple):
    """One signature of a function.

    Attributes:
        name: Its name in cel-go.
        is_member: Whether it is called on its first argument.
        arguments: Types of its arguments.
        result: Type of its result.
        has_parameters: Whether type parameters occur in it.
    """

    name: str
    is_member: bool
    arguments: tuple[CelType, ...]
    result: CelType
    has_parameters: bool


DEVICE_FIELDS: Final[Mapping[str, CelType]] = {
    "driver": STRING,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    "allowMultipleAllocations": BOOL,
}
"""The fields of variable `device`, of Kubernetes 1.36 and newer."""

_PARAMETERS = {name: type_parameter(name) for name in "ABKTV"}
_TYPES: Mapping[str, CelType] = {
    "bool": BOOL, "bytes": BYTES, "double": DOUBLE, "int": INT, "string": STRING, "uint": UINT, "duration": DURATION,
    "timestamp": TIMESTAMP, "dyn": DYN, "quantity": QUANTITY, "semver": SEMVER, **_PARAMETERS,
}  # fmt: skip
_CONSTRUCTORS: Mapping[str, Callable[..., CelType]] = {
    "list": list_of,
    "map": map_of,
    "optional": optional_of,
    "type": type_of,
}

TYPE_NAMES: Final[Mapping[str, CelType]] = {
    **{one.kind: type_of(one) for one in (BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT)},
    "list": type_of(list_of(_PARAMETERS["A"])),
    "map": type_of(map_of(_PARAMETERS["A"], _PARAMETERS["B"])),
    "type": type_of(CelType("type")),
    "optional_type": type_of(optional_of(_PARAMETERS["V"])),
}
"""Names that stand for types, such as in `type(x) == int`."""

COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_SUMMABLE = ("int", "uint", "double", "duration")

_SIGNATURES = """
_?_:_ conditional bool A A : A
_&&_ logical_and bool bool : bool
_||_ logical_or bool bool : bool
!_ logical_not bool : bool
@not_strictly_false not_strictly_false bool : bool
_==_ equals A A : bool
_!=_ not_equals A A : bool
_+_ add_bytes bytes bytes : bytes
_+_ add_double double double : double
_+_ add_duration_duration duration duration : duration
_+_ add_duration_timestamp duration timestamp : timestamp
_+_ add_timestamp_duration timestamp duration : timestamp
_+_ add_int64 int int : int
_+_ add_list list<A> list<A> : list<A>
_+_ add_string string string : string
_+_ add_uint64 uint uint : uint
_/_ divide_double double double : double
_/_ divide_int64 int int : int
_/_ divide_uint64 uint uint : uint
_%_ modulo_int64 int int : int
_%_ modulo_uint64 uint uint : uint
_*_ multiply_double double double : double
_*_ multiply_int64 int int : int
_*_ multiply_uint64 uint uint : uint
-_ negate_double double : double
-_ negate_int64 int : int
_-_ subtract_double double double : double
_-_ subtract_duration_duration duration duration : duration
_-_ subtract_int64 int int : int
_-_ subtract_timestamp_duration timestamp duration : timestamp
_-_ subtract_timestamp_timestamp timestamp timestamp : duration
_-_ subtract_uint64 uint uint : uint
_[_] index_list list<A> int : A
_[_] index_map map<A,B> A : B
_[_] optional_list_index_int optional<list<V>> int : optional<V>
_[_] optional_map_index_value optional<map<K,V>> K : optional<V>
_[?_] list_optindex_optional_int list<V> int : optional<V>
_[?_] optional_list_optindex_optional_int optional<list<V>> int : optional<V>
_[?_] map_optindex_optional_value map<K,V> K : optional<V>
_[?_] optional_map_optindex_optional_value optional<map<K,V>> K : optional<V>
@in in_list A list<A> : bool
@in in_map A map<A,B> : bool
size size_bytes bytes : int
.size bytes_size bytes : int
size size_list list<A> : int
.size list_size list<A> : int
size size_map map<A,B> : int
.size map_size map<A,B> : int
size size_string string : int
.size string_size string : int
type type A : type<A>
dyn to_dyn A : dyn
bool bool_to_bool bool : bool
bool string_to_bool string : bool
bytes bytes_to_bytes bytes : bytes
bytes string_to_bytes string : bytes
double double_to_double double : double
double int64_to_double int : double
double string_to_double string : double
double uint64_to_double uint : double
int int64_to_int64 int : int
int double_to_int64 double : int
int duration_to_int64 duration : int
int string_to_int64 string : int
int timestamp_to_int64 timestamp : int
int uint64_to_int64 uint : int
string string_to_string string : string
string bool_to_string bool : string
string bytes_to_string bytes : string
string double_to_string double : string
string duration_to_string duration : string
string int64_to_string int : string
string timestamp_to_string timestamp : string
string uint64_to_string uint : string
uint uint64_to_uint64 uint : uint
uint double_to_uint64 double : uint
uint int64_to_uint64 int : uint
uint string_to_uint64 string : uint
.contains contains_string string string : bool
.endsWith ends_with_string string string : bool
.startsWith starts_with_string string string : bool
matches matches string string : bool
.matches matches_string string string : bool
optional.of optional_of V : optional<V>
optional.ofNonZeroValue optional_ofNonZeroValue V : optional<V>
optional.none optional_none : optional<V>
.value optional_value optional<V> : V
.hasValue optional_hasValue optional<V> : bool
.or optional_or_optional optional<V> optional<V> : optional<V>
.orValue optional_orValue_value optional<V> V : V
.last list_last list<V> : optional<V>
.first list_first list<V> : optional<V>
optional.unwrap optional_unwrap list<optional<V>> : list<V>
.unwrapOpt optional_unwrapOpt list<optional<V>> : list<V>
.charAt string_char_at_int string int : string
.indexOf string_index_of_string string string : int
.indexOf string_index_of_string_int string string int : int
.indexOf list_a_index_of_int list<T> T : int
.lastIndexOf string_last_index_of_string string string : int
.lastIndexOf string_last_index_of_string_int string string int : int
.lastIndexOf list_a_last_index_of_int list<T> T : int
.lowerAscii string_lower_ascii string : string
.upperAscii string_upper_ascii string : string
.replace string_replace_string_string string string string : string
.replace string_replace_string_string_int string string string int : string
.split string_split_string string string : list<string>
.split string_split_string_int string string int : list<string>
.substring string_substring_int string int : string
.substring string_substring_int_int string int int : string
.trim string_trim string : string
strings.quote strings_quote string : string
.join list_join list<string> : string
.join list_join_string list<string> string : string
.find string_find_string string string : string
.findAll string_find_all_string string string : list<string>
.findAll string_find_all_string_int string string int : list<string>
sets.contains list_sets_contains_list list<T> list<T> : bool
sets.equivalent list_sets_equivalent_list list<T> list<T> : bool
sets.intersects list_sets_intersects_list list<T> list<T> : bool
.slice list_slice list<T> int int : list<T>
.flatten list_flatten list<list<T>> : list<T>
.flatten list_flatten_int list<dyn> int : list<dyn>
lists.range lists_range int : list<int>
.reverse list_reverse list<T> : list<T>
.distinct list_distinct list<T> : list<T>
cel.@mapInsert @mapInsert_map_key_value map<K,V> K V : map<K,V>
cel.@mapInsert @mapInsert_map_map map<K,V> map<K,V> : map<K,V>
quantity string_to_quantity string : quantity
isQuantity is_quantity_string string : bool
sign quantity_sign quantity : int
.isGreaterThan quantity_is_greater_than quantity quantity : bool
.isGreaterThan semver_is_greater_than semver semver : bool
.isLessThan quantity_is_less_than quantity quantity : bool
.isLessThan semver_is_less_than semver semver : bool
.compareTo quantity_compare_to quantity quantity : int
.compareTo semver_compare_to semver semver : int
.asApproximateFloat quantity_get_float quantity : double
.asInteger quantity_get_int quantity : int
.isInteger quantity_is_integer quantity : bool
.add quantity_add quantity quantity : quantity
.add quantity_add_int quantity int : quantity
.sub quantity_sub quantity quantity : quantity
.sub quantity_sub_int quantity int : quantity
semver string_to_semver string : semver
semver string_bool_to_semver string bool : semver
isSemver is_semver_string string : bool
isSemver is_semver_string_bool string bool : bool
.major semver_major semver : int
.minor semver_minor semver : int
.patch semver_patch semver : int
"""
"""One overload per line: function, with a dot before a member's; name of the overload; argument types : result."""

UNMODELED: Final = frozenset(
    [
        "duration",
        "timestamp",
        "getFullYear",
        "getMonth",
        "getDayOfYear",
        "getDayOfMonth",
        "getDate",
        "getDayOfWeek",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
        "format",
        "url",
        "isURL",
        "getScheme",
        "getHost",
        "getHostname",
        "getPort",
        "getEscapedPath",
        "getQuery",
        "ip",
        "isIP",
        "ip.isCanonical",
        "family",
        "isUnspecified",
        "isLoopback",
        "isLinkLocalMulticast",
        "isLinkLocalUnicast",
        "isGlobalUnicast",
        "cidr",
        "isCIDR",
        "containsIP",
        "containsCIDR",
        "prefixLength",
        "masked",
        "format.named",
        "validate",
        "path",
        "group",
        "serviceAccount",
        "resource",
        "subresource",
        "namespace",
        "name",
        "check",
        "errored",
        "error",
        "allowed",
        "reason",
        "fieldSelector",
        "labelSelector",
    ]
)
"""Functions of the environment that are not evaluated here."""

UNMODELED_NAMES: Final = ("google.", "kubernetes.", "net.", "format.")
"""Beginnings of names of messages, enums and types that are not known here."""

_COMPARISONS = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
_COMPARED = (
    "bool bool", "int64 int", "int64_double int double", "int64_uint64 int uint", "uint64 uint",
    "uint64_double uint double", "uint64_int64 uint int", "double double", "double_int64 double int",
    "double_uint64 double uint", "string string", "bytes bytes", "timestamp timestamp", "duration duration",
)  # fmt: skip


def _comparison_lines() -> Iterator[str]:
    for operator, prefix in _COMPARISONS.items():
        for line in _COMPARED:
            name, *types = line.split()
            yield f"{operator} {prefix}_{name} {types[0]} {types[-1]} : bool"


def _list_lines() -> Iterator[str]:
    for one in COMPARABLE:
        yield f".isSorted list_{one}_is_sorted_bool list<{one}> : bool"
        yield f".max list_{one}_max_{one} list<{one}> : {one}"
        yield f".min list_{one}_min_{one} list<{one}> : {one}"
        yield f".sort list_{one}_sort list<{one}> : list<{one}>"
        yield f".@sortByAssociatedKeys list_{one}_sortByAssociatedKeys list<T> list<{one}> : list<T>"
    for one in _SUMMABLE:
        yield f".sum list_{one}_sum_{one} list<{one}> : {one}"


def _parse_signature(line: str) -> tuple[str, FunctionOverload]:
    left, _, result = line.partition(" : ")
    function, name, *arguments = left.split()
    types = tuple(map(_parse_type, arguments))
    has_parameters = any(map(_has_parameters, (*types, _parse_type(result))))
    overload = FunctionOverload(name, function.startswith("."), types, _parse_type(result), has_parameters)
    return function.removeprefix("."), overload


def _parse_type(text: str) -> CelType:
    """Parse the name of a type.

    >>> _parse_type("map<string,list<int>>").parameters[1].kind
    'list'
    """
    name, _, inner = text.removesuffix(">").partition("<")
    if not inner:
        return _TYPES[name]
    parts = inner.split(",", 1) if name == "map" else [inner]
    return _CONSTRUCTORS[name](*map(_parse_type, parts))


def _has_parameters(one: CelType) -> bool:
    return one.kind == "parameter" or any(map(_has_parameters, one.parameters))


def _declared_functions() -> Mapping[str, tuple[FunctionOverload, ...]]:
    found: dict[str, tuple[FunctionOverload, ...]] = {}
    for line in (*_SIGNATURES.strip().splitlines(), *_comparison_lines(), *_list_lines()):
        function, overload = _parse_signature(line)
        found[function] = (*found.get(function, ()), overload)
    return found


FUNCTIONS: Final = _declared_functions()
"""The overloads of each function, in the order in which they are tried."""
