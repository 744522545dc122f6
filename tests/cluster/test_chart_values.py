"""What values of the chart change in its objects, and which it rejects: `helm template`, without an API server."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.charts import CHART, RELEASE_LABELS, helm_template, render, run_helm
from tests.cluster.client import Json
from tests.manifests.chart_values import read_chart_values
from webhook.documents.reader import read_documents
from webhook.manifests.objects import display_name
from webhook.manifests.sent_resources import with_gpu_resources
from webhook.well_known import SYSTEM_NAMESPACE


@cache
def rendered(*values: str) -> dict[str, Json]:
    """Return the objects of the chart with values, by kind, namespace and name; no test changes them."""
    flags = [f"--set={value}" for value in values]
    return {display_name(item): item for item in render(*flags, "--kube-version=1.36.3")}


def test_an_uninstall_keeps_the_namespace_of_the_agent() -> None:
    namespace = rendered("agent.enabled=true")["Namespace rightslice-agent"]

    assert namespace["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_namespace_of_the_agent_can_be_one_that_exists() -> None:
    created, existing = rendered("agent.enabled=true"), rendered("agent.enabled=true", "agent.createNamespace=false")

    assert created.keys() - existing.keys() == {"Namespace rightslice-agent"}


GPU_LIMIT = "policies.a.limits.perPod[0].resource=nvidia.com/gpu"
MEMORY_LIMIT = "policies.a.limits.perPod[0].resource=memory"
REJECTED = {
    "an amount that is none": ("webhook.resources.limits.memory=banana", "/webhook/resources/limits/memory"),
    "a negative amount": ("agent.resources.requests.cpu=-1", "/agent/resources/requests/cpu"),
    "a misspelled resource": (
        "webhook.resources.limits.memry=1Gi",
        "at '/webhook/resources/limits': additional properties 'memry' not allowed",
    ),
    "a misspelled kind of amounts": ("webhook.resources.limit.memory=1Gi", "additional properties 'limit'"),
    "a misspelled field of a toleration": ("webhook.tolerations[0].kee=gpu", "additional properties 'kee'"),
    "an unknown effect": ("webhook.tolerations[0].effect=Never", "/webhook/tolerations/0/effect"),
    "a value that no label has": ("webhook.nodeSelector.pool=a b", "/webhook/nodeSelector/pool"),
    "a value of a label that is no text": ("agent.nodeSelector.gpu=true", "/agent/nodeSelector/gpu"),
    "a tag in the repository": (
        "image.repository=reg.example.com:5000/x:1.2",
        "image.repository: must be an image without",
    ),
    "a digest in the repository": (
        "scheduler.image.repository=reg.example.com/x@sha256:0",
        'without tag and digest, found "reg.example.com/x@sha256:0". Write',
    ),
    "no repository": ("image.repository=", "image.repository: must be an image without tag"),
    "an affinity of no kind": ("agent.affinity.nodeAfinity.x=1", "additional properties 'nodeAfinity'"),
    "a misspelled rule of an affinity": (
        "webhook.affinity.nodeAffinity.requiredDuringScheduling[0].x=1",
        "additional properties 'requiredDuringScheduling'",
    ),
    "an affinity without terms": (
        "webhook.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms=x",
        "got string, want array",
    ),
    "a resource without domain": ("gpuResources={gpu}", "at '/gpuResources/0': 'gpu' does not match pattern"),
    "a resource of Kubernetes": ("gpuResources={kubernetes.io/gpu}", "at '/gpuResources/0': 'not' failed"),
    "a resource with a quote": ("gpuResources={example.com/x'y}", "at '/gpuResources/0'"),
    "a wildcard in the middle of a resource": ("gpuResources={example.com/*-gpu}", "at '/gpuResources/0'"),
    "an unknown mode": ("mode=enforced", "at '/mode': value must be one of 'audit', 'enforce'"),
    "a misspelled value": ("webhok.resources=1", "additional properties 'webhok' not allowed"),
    "a misspelled setting": ("webhook.settings.log_lvl=debug", "additional properties 'log_lvl' not allowed"),
    "a setting that is out of bounds": ("webhook.settings.prometheus_days=365", "maximum: got 365, want 90"),
    "a file that no flag names": ("webhook.files.prices=1", "at '/webhook/files': additional properties 'prices'"),
    "a file of queues that has no object": (
        "webhook.files.kueue_config=garbage",
        "at '/webhook/files/kueue_config': 'garbage' does not match pattern",
    ),
    "a file of node groups with another object": (
        "webhook.files.node_groups=kind: Configuration",
        "at '/webhook/files/node_groups': 'kind: Configuration' does not match pattern",
    ),
    "a file of a scheduler with a misspelled kind": (
        "webhook.files.scheduler_config=kind: SchedulerConfiguration",
        "at '/webhook/files/scheduler_config'",
    ),
    "a text for a switch": ("crds.keep=maybe", "at '/crds/keep': got string, want boolean"),
    "an unknown field of a policy": ("policies.x.securty=1", "at '/policies/x': additional properties 'securty'"),
    "an unknown mode of a policy": ("policies.x.mode=on", "at '/policies/x/mode': value must be one of 'enforce'"),
    "a second policy of a name": ("policies.guard.mode=audit", "Write another name, or guard.enabled=false"),
    "a tag that no image has": ("image.tag=a b", 'image.tag: must be a tag, found "a b". Write one such as 0.1.0'),
    "a tag of the scheduler that no image has": ("scheduler.image.tag=a b", "scheduler.image.tag: must be a tag"),
    "a digest without its algorithm": (
        "image.digest=0123",
        "image.digest: must be a digest with 64 hexadecimal digits",
    ),
    "an address that is none": ("networkPolicy.apiServerCIDRs={999.1.1.1/8}", 'found "999.1.1.1/8". Write 10.0.0.0/28'),
    "a prefix that is too long": (
        "networkPolicy.apiServerCIDRs={10.0.0.0/33}",
        'found "10.0.0.0/33". Write 10.0.0.0/28',
    ),
    "an address without a prefix": (
        "networkPolicy.apiServerCIDRs={::1}",
        "networkPolicy.apiServerCIDRs: must be addresses with the length of their prefix",
    ),
    "an issuer without name": ("certManager.issuerRef.kind=ClusterIssuer", "at '/certManager/issuerRef'"),
    "a URL without namespace": ("prometheus.url=http://prometheus:9090", "Write http://SERVICE.NAMESPACE.svc:9090"),
    "a Service or a host": (
        "prometheus.url=http://prometheus.corp",
        'with a port of at most 65535, found "http://prometheus.corp". Write http://SERVICE.NAMESPACE.svc:9090;',
    ),
    "a port that is none": ("tracing.endpoint=http://otel.observability.svc:65536", "with a port of at most 65535"),
    "a section without content": ("webhook=null", "at '': missing property 'webhook'"),
    "a value without content": ("image.tag=null", "at '/image': missing property 'tag'"),
    "a mode without content": ("mode=null", "at '': missing property 'mode'"),
    "a name of a policy that no object has": ("policies.my_policy.mode=audit", "at '/policies': additional properties"),
    "a setting that is too small": (
        "webhook.settings.drain_seconds=-1",
        "at '/webhook/settings/drain_seconds': minimum: got -1, want 0",
    ),
    "a Secret without name": ("imagePullSecrets[0].nam=x", "at '/imagePullSecrets/0'"),
    "a name that no Secret has": ("prometheus.secretName=a b", "at '/prometheus/secretName': 'a b' does not match"),
    "a name that no class has": ("agent.runtimeClassName=A", "at '/agent/runtimeClassName': 'A' does not match"),
    "a name that no priority has": ("webhook.priorityClassName=A", "at '/webhook/priorityClassName'"),
    "a name that no namespace has": (
        "monitoring.serviceMonitor.prometheusNamespace=A",
        "at '/monitoring/serviceMonitor/prometheusNamespace'",
    ),
    "a key that no label has": ("webhook.podLabels.a b=c", "at '/webhook/podLabels': additional properties 'a b'"),
    "a key that no annotation has": ("agent.podAnnotations.a b=c", "at '/agent/podAnnotations'"),
    "a port twice": ("networkPolicy.apiServerPorts={443,443}", "items at 0 and 1 are equal"),
    "a toleration of all values of a key that has one": (
        "webhook.tolerations[0].key=a,webhook.tolerations[0].operator=Exists,webhook.tolerations[0].value=b",
        "at '/webhook/tolerations/0/value': maxLength: got 1, want 0",
    ),
    "a toleration without key": ("webhook.tolerations[0].value=b", "missing property 'key'"),
    "a toleration that ends without eviction": (
        "webhook.tolerations[0].key=a,webhook.tolerations[0].tolerationSeconds=5",
        "missing property 'effect'",
    ),
    "an issuer that is not asked": (
        "certManager.issuerRef.name=internal",
        "certManager.enabled: must be true with certManager.issuerRef",
    ),
    "addresses that are restricted by nothing": (
        "networkPolicy.enabled=false,networkPolicy.apiServerCIDRs={10.0.0.0/28}",
        "networkPolicy.enabled: must be true with networkPolicy.apiServerCIDRs",
    ),
    "Secrets in a namespace that does not exist yet": (
        "agent.enabled=true,imagePullSecrets[0].name=registry",
        "agent.createNamespace: must be false with imagePullSecrets",
    ),
    "a token in the clear": (
        "prometheus.secretName=token",
        'must start with https:// with prometheus.secretName, whose token is a secret, found "http://prometheus-operated',
    ),
    "a minimum above the maximum": (
        f"{GPU_LIMIT},policies.a.limits.perPod[0].min=4,policies.a.limits.perPod[0].max=2",
        "policies.a.limits.perPod[0].min: must be at most max, which is 2, found 4",
    ),
    "a minimum above the maximum in other units": (
        f"{MEMORY_LIMIT},policies.a.limits.perPod[0].min=8Gi,policies.a.limits.perPod[0].max=1000M",
        "policies.a.limits.perPod[0].min: must be at most max, which is 1000M, found 8Gi",
    ),
    "allowed amounts and a minimum": (
        f"{GPU_LIMIT},policies.a.limits.perPod[0].allowed={{1,2}},policies.a.limits.perPod[0].min=1",
        "policies.a.limits.perPod[0].allowed: must not be combined with min or max",
    ),
    "a limit without an amount": (GPU_LIMIT, "policies.a.limits.perPod[0]: must have allowed, min, max or default"),
    "a part of a GPU": (
        f"{GPU_LIMIT},policies.a.limits.perPod[0].allowed={{1,1.5}}",
        "policies.a.limits.perPod[0]: must have whole numbers, because GPUs are counted in units, found 1.5",
    ),
    "a part of a GPU in thousandths": (
        f"{GPU_LIMIT},policies.a.limits.perPod[0].max=500m",
        "policies.a.limits.perPod[0]: must have whole numbers, because GPUs are counted in units, found 500m",
    ),
    "a limit whose only amount is null": (
        f"{GPU_LIMIT},policies.a.limits.perPod[0].max=null",
        "policies.a.limits.perPod[0]: must have allowed, min, max or default",
    ),
    "no URL": ("tracing.endpoint=otel.observability.svc:4318", "tracing.endpoint: must be an http or https URL"),
}


@pytest.mark.parametrize(("value", "message"), REJECTED.values(), ids=REJECTED)
def test_an_invalid_value_is_rejected_with_its_place(value: str, message: str) -> None:
    done = helm_template(f"--set={value}")

    assert done.returncode != 0
    assert message in done.stderr


LINTED = {name: REJECTED[name] for name in REJECTED if name.startswith("a file of")}


@pytest.mark.parametrize(("value", "message"), LINTED.values(), ids=LINTED)
def test_a_file_with_which_the_server_would_not_start_is_rejected_by_lint_too(value: str, message: str) -> None:
    done = run_helm("lint", str(CHART), f"--set={value}")

    assert done.returncode != 0
    assert message in done.stdout + done.stderr


ACCEPTED = [
    "webhook.files.node_groups=kind: NodeGroups",
    "image.repository=reg.example.com:5000/team/x",
    "image.tag=1.2.3-rc.1",
    "networkPolicy.apiServerCIDRs={10.0.0.0/28,192.168.255.7/32,fd00::/8,::/0}",
    "enabled=true,global.region=eu",
    "webhook.resources.requests.cpu=0.5",
    "webhook.resources.limits.memory=1.5Gi",
    f"{GPU_LIMIT},policies.a.limits.perPod[0].min=2,policies.a.limits.perPod[0].max=10",
    f"{GPU_LIMIT},policies.a.limits.perPod[0].max=1.0",
    f"{GPU_LIMIT},policies.a.limits.perPod[0].min=2000m,policies.a.limits.perPod[0].max=1e1",
    f"{GPU_LIMIT},policies.a.limits.perPod[0].allowed={{1,2}},policies.a.limits.perPod[0].min=null",
    f"{MEMORY_LIMIT},policies.a.limits.perPod[0].min=1000Mi,policies.a.limits.perPod[0].max=1Gi",
    f"{MEMORY_LIMIT},policies.a.limits.perPod[0].min=1Gi,policies.a.limits.perPod[0].max=1073741824",
    "policies.a.limits.perGPU[0].resource=cpu,policies.a.limits.perGPU[0].max=1.5",
    "webhook.resources.limits.ephemeral-storage=1Gi,webhook.resources.limits.hugepages-2Mi=2Mi",
    r"webhook.resources.limits.example\.com/nic=1",
    "gpuResources={example.com/gpu,amd.com/*,intel.com/gpu-*}",
    "extender.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone",
    "webhook.tolerations[0].key=gpu,webhook.tolerations[0].operator=Equal,webhook.tolerations[0].effect=NoExecute",
]


@pytest.mark.parametrize("value", ACCEPTED)
def test_a_valid_value_is_accepted(value: str) -> None:
    assert helm_template(f"--set={value}").returncode == 0


@pytest.mark.parametrize("mode", ["audit", "enforce"])
def test_further_resource_names_are_in_the_conditions_that_the_command_writes(mode: str) -> None:
    names = ("example.com/gpu", "amd.com/*")
    shipped, changed = rendered(f"mode={mode}"), rendered(f"mode={mode}", f"gpuResources={{{','.join(names)}}}")

    expected = {display_name(item): item for item in with_gpu_resources(shipped.values(), names)}
    assert changed == expected
    assert changed != shipped


def test_lists_and_maps_may_be_left_empty(tmp_path: Path) -> None:
    """In YAML, a key whose entries are all comments is null."""
    values: Json = {}
    for value in read_chart_values((CHART / "values.yaml").read_text()):
        *parents, name = value.path.split(".")
        group = values
        for parent in parents:
            group = group.setdefault(parent, {})
        group[name] = None if isinstance(value.default, dict | list) else value.default
    for component in ("agent", "extender", "scheduler", "dashboards", "prometheus", "tracing", "certManager"):
        values[component]["enabled"] = True
    for monitor in ("serviceMonitor", "alerts"):
        values["monitoring"][monitor]["enabled"] = True
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))

    assert helm_template(f"--values={file}").returncode == 0


@pytest.mark.parametrize("name", ["123", "true", "1e3", "null"])
def test_the_name_of_a_release_stays_text_in_labels(name: str) -> None:
    done = run_helm("template", name, str(CHART))

    labels = [each.data["metadata"]["labels"] for each in read_documents(done.stdout, "chart", aliases=True)]
    assert {each["app.kubernetes.io/instance"] for each in labels} == {name}


def test_a_default_of_the_nodes_of_the_agent_can_be_removed() -> None:
    objects = rendered(
        "agent.enabled=true", r"agent.nodeSelector.nvidia\.com/gpu\.present=null", "agent.nodeSelector.pool=gpu"
    )

    pod = objects["DaemonSet rightslice-agent/rightslice-agent"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"}


def test_prometheus_may_read_the_metrics_where_callers_are_restricted() -> None:
    callers = "networkPolicy.apiServerCIDRs={10.0.0.0/28}"
    monitor = ("monitoring.serviceMonitor.enabled=true", "monitoring.serviceMonitor.prometheusNamespace=metrics")

    [alone], [monitored] = (
        rendered(callers, *more)[f"NetworkPolicy {SYSTEM_NAMESPACE}/rightslice"]["spec"]["ingress"]
        for more in ((), monitor)
    )

    api_servers = {"ipBlock": {"cidr": "10.0.0.0/28"}}
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "metrics"}}}
    assert alone["from"] == [api_servers]
    assert monitored["from"] == [api_servers, prometheus]


def test_helm_sends_the_webhook_configurations_after_the_deployment() -> None:
    kinds = [item["kind"] for item in rendered().values()]

    assert max(kinds.index(kind) for kind in ("Deployment", "HorizontalPodAutoscaler")) < min(
        kinds.index(f"{kind}WebhookConfiguration") for kind in ("Mutating", "Validating")
    )


EGRESS: dict[str, tuple[str, Json]] = {
    "a Service": (
        "http://prometheus.monitoring.svc.cluster.local",
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]},
    ),
    "a Service with a port": (
        "http://prometheus.observability.svc:9090",
        {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]},
    ),
    "an address": (
        "http://10.1.2.3:9090",
        {"ports": [{"port": 9090, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]},
    ),
    "an IPv6 address": (
        "http://[fd00::1]:9090",
        {"ports": [{"port": 9090, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "fd00::1/128"}}]},
    ),
    "a host outside the cluster with one dot and the last": (
        "http://prometheus.corp.:9090",
        {"ports": [{"port": 9090, "protocol": "TCP"}]},
    ),
    "a name outside the cluster": (
        "https://prometheus.example.com/api",
        {"ports": [{"port": 443, "protocol": "TCP"}]},
    ),
}


@pytest.mark.parametrize(("url", "rule"), EGRESS.values(), ids=EGRESS)
@pytest.mark.parametrize(("component", "field"), [("prometheus", "url"), ("tracing", "endpoint")])
def test_the_webhook_may_connect_to_the_host_of_a_url(component: str, field: str, url: str, rule: Json) -> None:
    objects = rendered(f"{component}.enabled=true", f"{component}.{field}={url}")

    assert objects[f"NetworkPolicy {SYSTEM_NAMESPACE}/rightslice-{component}"]["spec"]["egress"] == [rule]


def test_every_component_may_connect_to_the_ports_of_the_api_server() -> None:
    objects = rendered("agent.enabled=true", "scheduler.enabled=true", "networkPolicy.apiServerPorts={16443}")

    policies = [item["spec"] for item in objects.values() if item["kind"] == "NetworkPolicy"]
    assert len(policies) == 4
    assert all(each["egress"][0]["ports"] == [{"port": 16443, "protocol": "TCP"}] for each in policies)


@pytest.mark.parametrize("component", ["rightslice", "rightslice-extender", "rightslice-scheduler"])
def test_a_component_with_replicas_can_lose_a_node(component: str) -> None:
    objects = rendered("scheduler.enabled=true")

    pod = objects[f"Deployment {SYSTEM_NAMESPACE}/{component}"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    [term] = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    apart = term["podAffinityTerm"]["labelSelector"]
    assert apart["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert objects[f"PodDisruptionBudget {SYSTEM_NAMESPACE}/{component}"]["spec"]["selector"] == apart
    assert objects[f"NetworkPolicy {SYSTEM_NAMESPACE}/{component}"]["spec"]["podSelector"] == apart
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "memory" in container["resources"]["limits"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert "token" in {mount["name"] for mount in container["volumeMounts"]}


COMPONENTS = {
    "webhook": ("Deployment", SYSTEM_NAMESPACE, "rightslice"),
    "extender": ("Deployment", SYSTEM_NAMESPACE, "rightslice-extender"),
    "scheduler": ("Deployment", SYSTEM_NAMESPACE, "rightslice-scheduler"),
    "agent": ("DaemonSet", "rightslice-agent", "rightslice-agent"),
}
"""Components by the name of their values, with kind, namespace and name."""


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_has_the_values_of_a_pod(component: str) -> None:
    kind, namespace, name = COMPONENTS[component]
    usual = rendered("agent.enabled=true", "scheduler.enabled=true")[f"{kind} {namespace}/{name}"]["spec"]["template"]
    values = {
        "nodeSelector.pool": "system",
        "tolerations[0].key": "dedicated",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight": "1",
        "priorityClassName": "important",
        "podAnnotations.checked": "yes",
        "podLabels.team": "platform",
        "serviceAccountAnnotations.role": "reader",
        "resources.limits.memory": "2Gi",
    }
    objects = rendered(
        "agent.enabled=true",
        "scheduler.enabled=true",
        "imagePullSecrets[0].name=registry",
        "agent.createNamespace=false",
        *(f"{component}.{path}={value}" for path, value in values.items()),
    )

    pod = objects[f"{kind} {namespace}/{name}"]["spec"]["template"]
    assert pod["spec"]["nodeSelector"]["pool"] == "system"
    assert pod["spec"]["tolerations"] == [{"key": "dedicated"}]
    assert pod["spec"]["affinity"] == {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    }
    assert pod["spec"]["priorityClassName"] == "important"
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": usual["spec"]["containers"][0]["resources"]["requests"],
        "limits": {"memory": "2Gi"},
    }
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["metadata"]["annotations"] == {"checked": "yes"}
    assert pod["metadata"]["labels"] == usual["metadata"]["labels"] | {"team": "platform"}
    account = objects[f"ServiceAccount {namespace}/{pod['spec']['serviceAccountName']}"]
    assert account["metadata"]["annotations"] == {"role": "reader"}


def test_labels_that_selectors_match_stay_as_they_are() -> None:
    labels = {r"app\.kubernetes\.io/name": "other", r"app\.kubernetes\.io/component": "other", "team": "platform"}
    deployment = rendered(*(f"webhook.podLabels.{key}={value}" for key, value in labels.items()))[
        f"Deployment {SYSTEM_NAMESPACE}/rightslice"
    ]

    found = deployment["spec"]["template"]["metadata"]["labels"]
    assert found["team"] == "platform"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= found.items()


def test_on_openshift_only_the_agent_names_a_user() -> None:
    objects = rendered("agent.enabled=true", "scheduler.enabled=true", "securityContext=openshift")

    contexts = {
        component: objects[f"{kind} {namespace}/{name}"]["spec"]["template"]["spec"].get("securityContext")
        for component, (kind, namespace, name) in COMPONENTS.items()
    }
    restricted = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert contexts == {"webhook": restricted, "extender": restricted, "scheduler": restricted, "agent": None}


def test_an_issuer_that_exists_issues_the_certificate() -> None:
    issuer = {"name": "internal", "kind": "ClusterIssuer"}
    objects = rendered("certManager.enabled=true", *(f"certManager.issuerRef.{key}={issuer[key]}" for key in issuer))

    found = {name: item for name, item in objects.items() if item["apiVersion"] == "cert-manager.io/v1"}
    assert {name: item["spec"]["issuerRef"] for name, item in found.items()} == {
        f"Certificate {SYSTEM_NAMESPACE}/rightslice-tls": issuer
    }


def test_every_object_has_the_labels_of_the_release_and_no_selector_has_them() -> None:
    names = ("agent", "scheduler", "prometheus", "tracing", "certManager", "dashboards", "monitoring.alerts")
    objects = rendered(*(f"{name}.enabled=true" for name in names), "webhook.files.node_groups=kind: NodeGroups")

    labels = RELEASE_LABELS.items()
    assert {name for name, item in objects.items() if not labels <= item["metadata"]["labels"].items()} == set()
    workloads = [item["spec"] for item in objects.values() if item["kind"] in ("Deployment", "DaemonSet")]
    assert len(workloads) == 4
    assert {key for spec in workloads for key in spec["selector"]["matchLabels"]} == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/component",
    }
    assert RELEASE_LABELS.keys().isdisjoint(key for spec in workloads for key in spec["template"]["metadata"]["labels"])
