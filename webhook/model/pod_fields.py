"""The fields of a pod that Kubernetes knows, to find misspelled ones.

Volume sources, references and other small objects are left out: their fields are not checked.

Source: `k8s.io/api/core/v1/types.go` of Kubernetes 1.36, and `workloadRef` of 1.35.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple

from webhook.model.bounded_cache import request_cache
from webhook.model.field_paths import FieldPath

MIN_SIMILARITY = 0.8
"""A less similar field may be one of a newer Kubernetes."""

MAX_FIELD_LENGTH = 64
MAX_UNKNOWN_FIELDS = 1000
"""Unknown fields of one pod that are compared with known ones."""

_FIELDS = {
    "Pod": "apiVersion kind metadata:ObjectMeta spec:PodSpec status",
    "PodSpec": """
        activeDeadlineSeconds affinity:Affinity automountServiceAccountToken containers:Container
        dnsConfig:PodDNSConfig dnsPolicy enableServiceLinks ephemeralContainers:EphemeralContainer
        hostAliases:HostAlias hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets
        initContainers:Container nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName
        readinessGates resourceClaims:PodResourceClaim resources restartPolicy runtimeClassName schedulerName
        schedulingGates schedulingGroup securityContext:PodSecurityContext serviceAccount serviceAccountName
        setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations:Toleration
        topologySpreadConstraints:TopologySpreadConstraint volumes:Volume workloadRef
    """,
    "Container": """
        args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy lifecycle:Lifecycle
        livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy resources restartPolicy
        restartPolicyRules securityContext:SecurityContext startupProbe:Probe stdin stdinOnce
        terminationMessagePath terminationMessagePolicy tty volumeDevices:VolumeDevice volumeMounts:VolumeMount
        workingDir
    """,
    "EphemeralContainer": """
        args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy lifecycle:Lifecycle
        livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy resources restartPolicy
        restartPolicyRules securityContext:SecurityContext startupProbe:Probe stdin stdinOnce
        targetContainerName terminationMessagePath terminationMessagePolicy tty volumeDevices:VolumeDevice
        volumeMounts:VolumeMount workingDir
    """,
    "ObjectMeta": """
        annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
        generation labels managedFields name namespace ownerReferences:OwnerReference resourceVersion selfLink
        uid
    """,
    "OwnerReference": "apiVersion blockOwnerDeletion controller kind name uid",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
    "EnvFromSource": "configMapRef prefix secretRef",
    "VolumeMount": "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
    "VolumeDevice": "devicePath name",
    "ContainerPort": "containerPort hostIP hostPort name protocol",
    "Probe": """
        exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket
        terminationGracePeriodSeconds timeoutSeconds
    """,
    "Lifecycle": "postStart:LifecycleHandler preStop:LifecycleHandler stopSignal",
    "LifecycleHandler": "exec httpGet sleep tcpSocket",
    "SecurityContext": """
        allowPrivilegeEscalation appArmorProfile capabilities:Capabilities privileged procMount
        readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser seLinuxOptions seccompProfile windowsOptions
    """,
    "Capabilities": "add drop",
    "PodSecurityContext": """
        appArmorProfile fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxChangePolicy
        seLinuxOptions seccompProfile supplementalGroups supplementalGroupsPolicy sysctls windowsOptions
    """,
    "Toleration": "effect key operator tolerationSeconds value",
    "TopologySpreadConstraint": """
        labelSelector:LabelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy
        topologyKey whenUnsatisfiable
    """,
    "Affinity": "nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity",
    "NodeAffinity": """
        preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm
        requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
    """,
    "NodeSelector": "nodeSelectorTerms:NodeSelectorTerm",
    "PreferredSchedulingTerm": "preference:NodeSelectorTerm weight",
    "NodeSelectorTerm": "matchExpressions:NodeSelectorRequirement matchFields:NodeSelectorRequirement",
    "NodeSelectorRequirement": "key operator values",
    "PodAffinity": """
        preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm
        requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm
    """,
    "PodAntiAffinity": """
        preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm
        requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm
    """,
    "WeightedPodAffinityTerm": "podAffinityTerm:PodAffinityTerm weight",
    "PodAffinityTerm": """
        labelSelector:LabelSelector matchLabelKeys mismatchLabelKeys namespaceSelector:LabelSelector namespaces
        topologyKey
    """,
    "LabelSelector": "matchExpressions:LabelSelectorRequirement matchLabels",
    "LabelSelectorRequirement": "key operator values",
    "Volume": """
        awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI
        emptyDir:EmptyDirVolumeSource ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs
        hostPath image iscsi name nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected
        quobyte rbd scaleIO secret storageos vsphereVolume
    """,
    "EmptyDirVolumeSource": "medium sizeLimit",
    "PodResourceClaim": "name resourceClaimName resourceClaimTemplateName",
    "PodDNSConfig": "nameservers options searches",
    "HostAlias": "hostnames ip",
}
"""Fields by type, each with its type if that is here too."""

POD_FIELDS: Mapping[str, Mapping[str, str]] = {
    name: dict([field.partition(":")[::2] for field in fields.split()]) for name, fields in _FIELDS.items()
}
"""Types of the fields by type; "" where their fields are not checked."""


class MisspelledField(NamedTuple):
    """An unknown field, and the known one that is meant."""

    path: FieldPath
    meant: str


def find_misspelled_fields(pod: Any) -> Iterator[MisspelledField]:
    """Yield the fields of a pod or of a template that nearly are fields of Kubernetes."""
    for path, type_name in islice(_unknown_fields(pod, "Pod", ()), MAX_UNKNOWN_FIELDS):
        if meant := _closest_field(str(path[-1])[:MAX_FIELD_LENGTH], type_name):
            yield MisspelledField(path, meant)


def _unknown_fields(data: Any, type_name: str, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yield the unknown fields of a value, and those of its parts, with the type that lacks them."""
    if isinstance(data, list):
        for index, each in enumerate(data):
            yield from _unknown_fields(each, type_name, (*path, index))
    if not isinstance(data, dict):
        return
    fields = POD_FIELDS[type_name]
    for key, value in data.items():
        if key not in fields:
            yield (*path, key), type_name
        elif fields[key]:
            yield from _unknown_fields(value, fields[key], (*path, key))


@request_cache(1024)
def _closest_field(found: str, type_name: str) -> str:
    fields = {field.lower(): field for field in POD_FIELDS[type_name]}
    close = get_close_matches(found.lower(), fields, n=1, cutoff=MIN_SIMILARITY)
    return fields[close[0]] if close else ""
