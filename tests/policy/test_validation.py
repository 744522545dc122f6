"""load_policies: the error of each invalid policy."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from webhook.policy.loader import load_policies

HEAD = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec:\n"
LONG = "a" * 64


class Case(NamedTuple):
    spec: str
    code: str
    message: str


SCOPE = "match: {namespaces: [a]}, reason: r, codes: [GPU-S201]"
UNTIL = 'expirationTime: "2026-12-01T00:00:00Z"'

CASES = {
    "a mode in capitals": Case(
        "  mode: Enforce",
        "GPU-P103",
        "p.yaml:5:9: spec.mode: must be enforce, warn or audit, found 'Enforce'. Write enforce",
    ),
    "a misspelled section": Case(
        "  rightsizing: {}",
        "GPU-P102",
        "p.yaml:5:3: spec.rightsizing: must be a field of spec, found 'rightsizing'. Did you mean rightSizing? "
        "Write rightSizing",
    ),
    "a field of another tool": Case(
        "  rightSizing: {lookbackDays: 3}",
        "GPU-P102",
        "p.yaml:5:17: spec.rightSizing.lookbackDays: must be a field of rightSizing, found 'lookbackDays'. Write one "
        "of default, evidence, forms, isolation, marginPercent, memoryFraction, minSavingPercent, mode, risk, "
        "templates, whenFull",
    ),
    "a misspelled field behind a choice of forms": Case(
        "  injection: {nodeAffinity: {offr: auto}}",
        "GPU-P102",
        "p.yaml:5:30: spec.injection.nodeAffinity.offr: must be a field of nodeAffinity, found 'offr'. "
        "Did you mean offer? Write offer",
    ),
    "half a GPU as text": Case(
        "  quotas: {shared: [{name: q, gpuMilli: 500m}]}",
        "GPU-P103",
        "p.yaml:5:41: spec.quotas.shared[0].gpuMilli: must be a whole number, found '500m'. "
        "Write a number such as 2, without quotes",
    ),
    "a quota without an amount": Case(
        "  quotas: {shared: [{name: q}]}",
        "GPU-P103",
        "p.yaml:5:21: spec.quotas.shared[0]: must have the field gpuMilli, found none. Write gpuMilli: 8000",
    ),
    "an empty fair share key": Case(
        "  fairShare: {by: ''}",
        "GPU-P103",
        "p.yaml:5:19: spec.fairShare.by: must be a label key: at most 63 letters, digits, -, _ and . after an optional "
        "domain and /, found ''. Write a key such as example.com/team",
    ),
    "two quotas with the same name": Case(
        "  quotas: {shared: [{name: q, gpuMilli: 1}, {name: q, gpuMilli: 2}]}",
        "GPU-P103",
        "p.yaml:5:52: spec.quotas.shared[1].name: must be unique among the quotas, found 'q'. Write another name",
    ),
    "operations that are never evaluated": Case(
        "  match: {operations: [DELETE, CONNECT]}",
        "GPU-P103",
        "p.yaml:5:23: spec.match.operations: must include CREATE or UPDATE; other operations are not evaluated, "
        "found [DELETE, CONNECT]. Write operations: [CREATE, UPDATE]",
    ),
    "default evidence without a default": Case(
        "  rightSizing: {evidence: [default]}",
        "GPU-P103",
        "p.yaml:5:27: spec.rightSizing.evidence: must list evidence other than default, unless the field default "
        "is set, found [default]. Write evidence: [declared, observed], or add default: {memory: 8Gi}",
    ),
    "a word instead of a quantity": Case(
        "  limits: {perPod: [{resource: cpu, max: eight}]}",
        "GPU-P103",
        "p.yaml:5:42: spec.limits.perPod[0].max: must be a quantity, found 'eight'. "
        "Write a quantity such as 1, 500m or 8Gi",
    ),
    "a boolean instead of a quantity": Case(
        "  limits: {perPod: [{resource: cpu, max: true}]}",
        "GPU-P103",
        "p.yaml:5:42: spec.limits.perPod[0].max: must be a quantity, found true. "
        "Write a quantity such as 1, 500m or 8Gi",
    ),
    "a negative quantity": Case(
        "  limits: {perPod: [{resource: cpu, max: -1}]}",
        "GPU-P103",
        "p.yaml:5:42: spec.limits.perPod[0].max: must be a quantity of at least 0, found -1. Write a quantity such "
        "as 1, 500m or 8Gi",
    ),
    "gibibytes without unit": Case(
        "  rightSizing: {default: {memory: 8}}",
        "GPU-P103",
        "p.yaml:5:35: spec.rightSizing.default.memory: must be at least 1Mi of GPU memory (a number without unit "
        "is bytes), found 8. Write 8Gi",
    ),
    "mebibytes without unit": Case(
        '  rightSizing: {default: {memory: "8192"}}',
        "GPU-P103",
        "p.yaml:5:35: spec.rightSizing.default.memory: must be at least 1Mi of GPU memory (a number without unit "
        "is bytes), found '8192'. Write 8192Mi",
    ),
    "a share without percent": Case(
        "  rightSizing: {default: {memory: 8Gi, compute: 20}}",
        "GPU-P103",
        "p.yaml:5:49: spec.rightSizing.default.compute: must be a share of one GPU in percent, above 0% and at most "
        '100%, found 20. Write "20%"',
    ),
    "more than one whole GPU as a share": Case(
        '  rightSizing: {default: {memory: 8Gi, compute: "120%"}}',
        "GPU-P103",
        "p.yaml:5:49: spec.rightSizing.default.compute: must be a share of one GPU in percent, above 0% and at most "
        "100%, found '120%'. Write \"20%\"",
    ),
    "a default without memory": Case(
        "  rightSizing: {default: {}}",
        "GPU-P103",
        "p.yaml:5:26: spec.rightSizing.default: must have the field memory, found none. Write memory: 8Gi",
    ),
    "forms that the isolation excludes": Case(
        "  rightSizing: {forms: [timeSlicing]}",
        "GPU-P103",
        "p.yaml:5:24: spec.rightSizing.forms: must include a form that isolation: hardware allows, found "
        "[timeSlicing]. Write forms: [mig], or isolation: none",
    ),
    "text instead of a number": Case(
        '  rightSizing: {marginPercent: "15"}',
        "GPU-P103",
        "p.yaml:5:32: spec.rightSizing.marginPercent: must be a whole number, found '15'. "
        "Write a number such as 2, without quotes",
    ),
    "a fraction instead of a whole number": Case(
        "  rightSizing: {marginPercent: 1.5e0}",
        "GPU-P103",
        "p.yaml:5:32: spec.rightSizing.marginPercent: must be a whole number, found 1.5. "
        "Write a number such as 2, without quotes",
    ),
    "more than 100 percent": Case(
        "  rightSizing: {minSavingPercent: 101}",
        "GPU-P103",
        "p.yaml:5:35: spec.rightSizing.minSavingPercent: must be at most 100, found 101. Write 100, or less",
    ),
    "a risk above 50 percent": Case(
        '  rightSizing: {risk: "51%"}',
        "GPU-P103",
        "p.yaml:5:23: spec.rightSizing.risk: must be a risk per pod-hour in percent, from 0.001% to 50%, found "
        "'51%'. Write \"0.5%\"",
    ),
    "a negative percentage": Case(
        "  rightSizing: {marginPercent: -1}",
        "GPU-P103",
        "p.yaml:5:32: spec.rightSizing.marginPercent: must be at least 0, found -1. Write 0, or more",
    ),
    "a section that is empty": Case(
        "  security:",
        "GPU-P103",
        "p.yaml:5:12: spec.security: must have a value, found nothing. Write a value, or remove the key",
    ),
    "a section that is a list": Case(
        "  security: [privileged]",
        "GPU-P103",
        "p.yaml:5:13: spec.security: must be a map of fields, found [privileged]. Write one field per line, or "
        "remove it",
    ),
    "a word instead of a list": Case(
        '  match: {namespaces: "team-*"}',
        "GPU-P103",
        "p.yaml:5:23: spec.match.namespaces: must be a list, found 'team-*'. Write [\"team-*\"]",
    ),
    "an empty list": Case(
        "  match: {namespaces: []}",
        "GPU-P103",
        "p.yaml:5:23: spec.match.namespaces: must not be empty, found an empty list. Write at least one entry, or "
        "remove it",
    ),
    "a number instead of a name": Case(
        "  match: {namespaces: [5]}",
        "GPU-P103",
        'p.yaml:5:24: spec.match.namespaces[0]: must be text, found 5. Write "5" in quotes',
    ),
    "a map instead of a name": Case(
        "  match: {namespaces: [{a: b}]}",
        "GPU-P103",
        "p.yaml:5:24: spec.match.namespaces[0]: must be text, found a map. Write text",
    ),
    "a regular expression that backtracks": Case(
        "  match: {namespaces: [(a+)+$]}",
        "GPU-P103",
        "p.yaml:5:24: spec.match.namespaces[0]: must be a name, or a pattern with * and ?, found '(a+)+$'. Write "
        "only letters, digits, -, ., /, * and ?",
    ),
    "a pattern without quotes": Case(
        "  match: {namespaces: [*]}",
        "GPU-P101",
        "p.yaml:5:25: must not begin with * or & unquoted. Put the text in quotes",
    ),
    "a pattern of 254 characters": Case(
        f"  match: {{namespaces: ['{'*' * 254}']}}",
        "GPU-P103",
        f"p.yaml:5:24: spec.match.namespaces[0]: must be at most 253 characters, found '{'*' * 59}…'. "
        "Write a shorter pattern",
    ),
    "a lowercase operation": Case(
        "  match: {operations: [create]}",
        "GPU-P103",
        "p.yaml:5:24: spec.match.operations[0]: must be CREATE, UPDATE, DELETE or CONNECT, found 'create'. "
        "Write CREATE",
    ),
    "an operator that needs values": Case(
        "  match: {objectSelector: {matchExpressions: [{key: a, operator: In}]}}",
        "GPU-P103",
        "p.yaml:5:47: spec.match.objectSelector.matchExpressions[0]: must have values, because the operator is In. "
        "Write values: [one, two]",
    ),
    "an operator that takes none": Case(
        "  match: {objectSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}",
        "GPU-P103",
        "p.yaml:5:82: spec.match.objectSelector.matchExpressions[0].values: must have no values, because the "
        "operator is Exists, found [b]. Write operator: In, or remove the values",
    ),
    "a template path with an empty key": Case(
        '  match: {templates: [{apiGroup: x, kind: K, paths: ["a..b"]}]}',
        "GPU-P103",
        "p.yaml:5:54: spec.match.templates[0].paths[0]: must be keys separated by dots, found 'a..b'. Write a path "
        "such as spec.template or spec.roles.*.template",
    ),
    "a condition that is not CEL": Case(
        '  match: {matchConditions: [{name: c, expression: "object.x =="}]}',
        "GPU-P106",
        "p.yaml:5:51: spec.match.matchConditions[0].expression: must be valid CEL: line 1, column 12: Syntax error",
    ),
    "a condition about an unknown name": Case(
        '  match: {matchConditions: [{name: c, expression: "pod.x == 1"}]}',
        "GPU-P106",
        "p.yaml:5:51: spec.match.matchConditions[0].expression: must be valid CEL: line 1, column 4: undeclared "
        "reference to 'pod.x' (in container ''). Write an expression over object, oldObject, request, "
        "namespaceObject",
    ),
    "a pattern that RE2 rejects": Case(
        """  match: {matchConditions: [{name: c, expression: "object.kind.matches('(a')"}]}""",
        "GPU-P106",
        "p.yaml:5:51: spec.match.matchConditions[0].expression: must use patterns in RE2 syntax, found '(a' at "
        "line 1, column 21 (missing ): (a). Write a pattern with balanced brackets and without look-around or "
        "back-references, such as '^team-[0-9]+$'",
    ),
    "a condition that is a number": Case(
        '  match: {matchConditions: [{name: c, expression: "1 + 1"}]}',
        "GPU-P106",
        "p.yaml:5:51: spec.match.matchConditions[0].expression: must be true or false, found an expression of type "
        "int. Write a comparison, for example … == true",
    ),
    "conditions with the same name": Case(
        '  match: {matchConditions: [{name: c, expression: "true"}, {name: c, expression: "true"}]}',
        "GPU-P103",
        "p.yaml:5:67: spec.match.matchConditions[1].name: must be unique among the conditions, found 'c'. Write "
        "another name",
    ),
    "a condition of 5 000 characters": Case(
        f"  match: {{matchConditions: [{{name: c, expression: '{'true && ' * 625}true'}}]}}",
        "GPU-P103",
        "p.yaml:5:51: spec.match.matchConditions[0].expression: must have at most 4096 characters, found 'true",
    ),
    "a default for a whole pod": Case(
        "  limits: {perPod: [{resource: cpu, default: 4}]}",
        "GPU-P103",
        "p.yaml:5:20: spec.limits.perPod: must have no default, because defaults apply to containers, found a "
        "list. Write the default under perContainer or perGPU",
    ),
    "two defaults for one resource": Case(
        "  limits: {perContainer: [{resource: cpu, default: 4}], perGPU: [{resource: cpu, default: 8}]}",
        "GPU-P103",
        "p.yaml:5:65: spec.limits.perGPU: must set at most one default per resource, found a list. Write one "
        "default for cpu",
    ),
    "a default for GPUs": Case(
        "  limits: {perContainer: [{resource: nvidia.com/gpu, default: 1}]}",
        "GPU-P103",
        "p.yaml:5:63: spec.limits.perContainer[0].default: must not be set for GPUs, because sidecars would get "
        "one too, found 1. Write the rule without a default",
    ),
    "a default for many resources": Case(
        '  limits: {perContainer: [{resource: "*", default: 1}]}',
        "GPU-P103",
        "p.yaml:5:38: spec.limits.perContainer[0].resource: must be cpu, memory or ephemeral-storage if the rule "
        "has a default: other resources need an equal limit, found '*'. Write cpu, memory or ephemeral-storage, or "
        "remove the default",
    ),
    "a default for an extended resource": Case(
        "  limits: {perGPU: [{resource: rdma/hca, default: 1}]}",
        "GPU-P103",
        "p.yaml:5:32: spec.limits.perGPU[0].resource: must be cpu, memory or ephemeral-storage if the rule has a "
        "default: other resources need an equal limit, found 'rdma/hca'. Write cpu, memory or ephemeral-storage, "
        "or remove the default",
    ),
    "a default for huge pages": Case(
        "  limits: {perContainer: [{resource: hugepages-2Mi, default: 4Mi}]}",
        "GPU-P103",
        "p.yaml:5:38: spec.limits.perContainer[0].resource: must be cpu, memory or ephemeral-storage if the rule "
        "has a default: other resources need an equal limit, found 'hugepages-2Mi'. Write cpu, memory or "
        "ephemeral-storage, or remove the default",
    ),
    "a default for pods": Case(
        "  limits: {perContainer: [{resource: pods, default: 1}]}",
        "GPU-P103",
        "p.yaml:5:38: spec.limits.perContainer[0].resource: must be cpu, memory or ephemeral-storage if the rule "
        "has a default: other resources need an equal limit, found 'pods'. Write cpu, memory or ephemeral-storage, "
        "or remove the default",
    ),
    "a default for an unknown resource": Case(
        "  limits: {perContainer: [{resource: cpus, default: 1}]}",
        "GPU-P103",
        "p.yaml:5:38: spec.limits.perContainer[0].resource: must be cpu, memory or ephemeral-storage if the rule "
        "has a default: other resources need an equal limit, found 'cpus'. Write cpu, memory or ephemeral-storage, "
        "or remove the default",
    ),
    "a default above the maximum": Case(
        "  limits: {perContainer: [{resource: cpu, default: 3, max: 2}]}",
        "GPU-P103",
        "p.yaml:5:52: spec.limits.perContainer[0].default: must be an amount that the rule allows, found 3. Write "
        "an allowed amount",
    ),
    "a minimum above the maximum": Case(
        "  limits: {perPod: [{resource: memory, min: 2Gi, max: 1Gi}]}",
        "GPU-P103",
        "p.yaml:5:45: spec.limits.perPod[0].min: must be at most max, which is 1Gi, found '2Gi'. Write min: 1Gi or "
        "less, or increase max",
    ),
    "allowed amounts and a maximum": Case(
        "  limits: {perPod: [{resource: cpu, allowed: [1], max: 2}]}",
        "GPU-P103",
        "p.yaml:5:46: spec.limits.perPod[0].allowed: must not be combined with min or max, found [1]. Write only "
        "allowed, or only min and max",
    ),
    "an empty rule": Case(
        "  limits: {perPod: [{resource: cpu}]}",
        "GPU-P103",
        "p.yaml:5:21: spec.limits.perPod[0]: must have allowed, min, max or default. Write resource: cpu and max: 8",
    ),
    "half a GPU": Case(
        "  limits: {perPod: [{resource: nvidia.com/gpu, allowed: [0.5, 1]}]}",
        "GPU-P103",
        "p.yaml:5:57: spec.limits.perPod[0].allowed: must be whole numbers, because GPUs are counted in units, "
        "found a list. Write allowed: [1, 2, 4]",
    ),
    "one and a half GPUs": Case(
        "  limits: {perPod: [{resource: nvidia.com/gpu, max: 1500m}]}",
        "GPU-P103",
        "p.yaml:5:53: spec.limits.perPod[0].max: must be a whole number, because GPUs are counted in units, found "
        "'1500m'. Write max: 1 or max: 2",
    ),
    "GPUs per GPU": Case(
        "  limits: {perGPU: [{resource: nvidia.com/gpu, max: 1}]}",
        "GPU-P103",
        "p.yaml:5:20: spec.limits.perGPU: must not have rules for GPUs, found a list. Write the rule under perPod",
    ),
    "a toleration of every taint": Case(
        "  injection: {tolerations: [{operator: Exists}]}",
        "GPU-P103",
        "p.yaml:5:29: spec.injection.tolerations[0]: must have the field key, found none. Write key: …",
    ),
    "a toleration with a value for Exists": Case(
        "  injection: {tolerations: [{key: a, operator: Exists, value: b}]}",
        "GPU-P103",
        "p.yaml:5:63: spec.injection.tolerations[0].value: must have no value, because the operator is Exists, "
        "found 'b'. Write operator: Equal, or remove the value",
    ),
    "seconds without NoExecute": Case(
        "  injection: {tolerations: [{key: a, tolerationSeconds: 3}]}",
        "GPU-P103",
        "p.yaml:5:57: spec.injection.tolerations[0].tolerationSeconds: must have effect: NoExecute, because "
        "tolerationSeconds is set, found 3. Write effect: NoExecute, or remove tolerationSeconds",
    ),
    "a word that is not auto": Case(
        "  injection: {tolerations: Auto}",
        "GPU-P103",
        "p.yaml:5:28: spec.injection.tolerations: must be auto, found 'Auto'. Write auto",
    ),
    "a comparison with a word": Case(
        "  injection: {nodeAffinity: {required: [{key: a, operator: Gt, values: [b]}]}}",
        "GPU-P103",
        "p.yaml:5:41: spec.injection.nodeAffinity.required[0]: must have one whole number as values, because the "
        'operator is Gt. Write values: ["40000"]',
    ),
    "a label value of 64 characters": Case(
        f"  injection: {{labels: {{a: {LONG}}}}}",
        "GPU-P103",
        "p.yaml:5:27: spec.injection.labels.a: must be a label value: at most 63 letters, digits, -, _ and ., with a "
        f"letter or digit at both ends, found '{'a' * 59}…'. Write a valid label value",
    ),
    "a label value with a newline": Case(
        '  injection: {labels: {a: "b\\n"}}',
        "GPU-P103",
        "p.yaml:5:27: spec.injection.labels.a: must be a label value: at most 63 letters, digits, -, _ and ., with "
        "a letter or digit at both ends, found 'b\\n'. Write a valid label value",
    ),
    "a label key with a blank": Case(
        "  injection: {labels: {a b: c}}",
        "GPU-P103",
        "p.yaml:5:24: spec.injection.labels['a b']: the key must be a label key: at most 63 letters, digits, -, _ and "
        ". after an optional domain and /, found 'a b'. Write a key such as example.com/team",
    ),
    "a bypass that does not exist": Case(
        "  security: {deny: [priviledged]}",
        "GPU-P103",
        "p.yaml:5:21: spec.security.deny[0]: must be one of 27 allowed values, found 'priviledged'. Write privileged",
    ),
    "an unknown finding code": Case(
        f"  exemptions: [{{name: e, match: {{namespaces: [a]}}, reason: r, codes: [GPU-S999], {UNTIL}}}]",
        "GPU-P103",
        "p.yaml:5:71: spec.exemptions[0].codes[0]: must be a finding code, found 'GPU-S999'. Write one of the "
        "codes that rightslice explain lists",
    ),
    "a misspelled finding code": Case(
        f"  exemptions: [{{name: e, match: {{namespaces: [a]}}, reason: r, codes: [s2O1], {UNTIL}}}]",
        "GPU-P103",
        "p.yaml:5:71: spec.exemptions[0].codes[0]: must be a finding code, found 's2O1'. Write GPU-S201",
    ),
    "less than one GPU": Case(
        "  limits: {perPod: [{resource: nvidia.com/gpu, max: 500m}]}",
        "GPU-P103",
        "p.yaml:5:53: spec.limits.perPod[0].max: must be a whole number, because GPUs are counted in units, found "
        "'500m'. Write max: 1",
    ),
    "an exemption without namespaces": Case(
        f"  exemptions: [{{name: e, match: {{}}, reason: r, codes: [GPU-S201], {UNTIL}}}]",
        "GPU-P103",
        "p.yaml:5:33: spec.exemptions[0].match: must have the field namespaces, found none. Write namespaces: [team-a]",
    ),
    "an exemption without expiration": Case(
        f"  exemptions: [{{name: e, {SCOPE}}}]",
        "GPU-P103",
        "p.yaml:5:16: spec.exemptions[0]: must have the field expirationTime, found none. "
        'Write expirationTime: "2027-01-01T00:00:00Z"',
    ),
    "an expiration without a zone": Case(
        f'  exemptions: [{{name: e, {SCOPE}, expirationTime: "2026-12-01T00:00:00"}}]',
        "GPU-P103",
        "p.yaml:5:98: spec.exemptions[0].expirationTime: must be a time with a zone (RFC 3339), found "
        "'2026-12-01T00:00:00'. Write \"2026-12-01T00:00:00Z\"",
    ),
    "an expiration on an invalid day": Case(
        f'  exemptions: [{{name: e, {SCOPE}, expirationTime: "2026-02-30T00:00:00Z"}}]',
        "GPU-P103",
        "p.yaml:5:98: spec.exemptions[0].expirationTime: must be a time with a zone (RFC 3339), found "
        "'2026-02-30T00:00:00Z'. Write \"2026-12-01T00:00:00Z\"",
    ),
    "an exemption without a reason": Case(
        f'  exemptions: [{{name: e, match: {{namespaces: [a]}}, codes: [GPU-S201], {UNTIL}, reason: " "}}]',
        "GPU-P103",
        "p.yaml:5:119: spec.exemptions[0].reason: must give a reason, found ' '. Write a reason such as "
        '"INC-4711: driver hang"',
    ),
    "off without quotes": Case(
        "  limits: {accounting: off}",
        "GPU-P101",
        "p.yaml:5:24: must be unambiguous, found off, which some parsers read as a number or as true or false. "
        'Write "off" in quotes for text, or a plain number',
    ),
    "a tab": Case("\tmode: audit", "GPU-P101", "p.yaml:5:1: must be indented with spaces, found a tab. Write spaces"),
    "a key twice": Case(
        "  mode: audit\n  mode: warn",
        "GPU-P101",
        "p.yaml:6:3: must have each key once, found 'mode' again (first at line 5, column 3). Remove one of the two",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_only_error(case: Case) -> None:
    loaded = load_policies([("p.yaml", HEAD + case.spec)])
    assert loaded.policies is None
    assert len(loaded.errors) == 1, [str(error) for error in loaded.errors]
    (error,) = loaded.errors
    assert str(error)[: len(case.message)] == case.message
    assert error.code == case.code
    assert ". " in str(error), "the message says what to write"


def test_all_errors_are_reported_in_file_order() -> None:
    text = HEAD + "  mode: Warn\n  descripton: x\n  cuda: {driver: true}\n  limits: {perGpu: []}\n"
    locations = [(error.location.line, error.location.column) for error in load_policies([("p.yaml", text)]).errors]
    assert locations == [(5, 9), (6, 3), (7, 18), (8, 12)]


WHOLE = {
    "a list instead of a map": (
        "[]",
        "p.yaml:1:1: must be a map with apiVersion and kind, found an empty list. Write apiVersion: right",
    ),
    "a pod": (
        "apiVersion: v1\nkind: Pod",
        "p.yaml:1:1: must contain at least one GPUPolicy, found none. Write one",
    ),
    "no API version": (
        "kind: GPUPolicy",
        "p.yaml:1:1: apiVersion: must be rightslice.dev/v1alpha1, found nothing. Write apiVersion: rightslice",
    ),
    "a misspelled kind": (
        "apiVersion: rightslice.dev/v1alpha1\nkind: GpuPolicy",
        "p.yaml:2:7: kind: must be a kind of rightslice.dev: GPUPolicy, GPUPolicyException, GPUPolicyTest, found "
        "'GpuPolicy'. Write kind: GPUPolicy",
    ),
    "no name": (
        "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {}\nspec: {}",
        "p.yaml:3:11: metadata: must have the field name, found none. Write name: …",
    ),
    "a name in capitals": (
        "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: Mine}\nspec: {}",
        "p.yaml:3:18: metadata.name: must be a name of lowercase letters, digits, - and ., found 'Mine'. "
        'Write a name such as "team-vision"',
    ),
    "an unrendered template": (
        "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: {{ .Release.Name }}}",
        "p.yaml:3:19: must be YAML, found {{ … }}: it looks like a Helm template. Render it first",
    ),
    "10 MB": ("# x\n" * 2_500_000, "p.yaml: must be at most 1 MiB, found more. Split the file"),
}


@pytest.mark.parametrize(("text", "message"), WHOLE.values(), ids=WHOLE)
def test_invalid_files(text: str, message: str) -> None:
    loaded = load_policies([("p.yaml", text)])
    assert loaded.policies is None
    (error,) = loaded.errors
    assert str(error)[: len(message)] == message
