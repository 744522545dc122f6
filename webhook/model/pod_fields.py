"""The fields of a pod or resource claim that Kubernetes knows, and the values of those that have a fixed set.

Alpha fields and volume sources of single vendors are left out: what is in them is not checked. The fields of
`resources` are checked by `audit.validation`.

Source: `types.go` of `k8s.io/api/core/v1` and `k8s.io/api/resource/v1` of Kubernetes 1.37, and `workloadRef` of 1.35.
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
MAX_WRONG_FIELDS = 1000
"""Unknown fields of one pod that are compared with known ones, and wrong values."""

_FIELDS = {
    "Pod": "apiVersion kind metadata:ObjectMeta spec:PodSpec status",
    "PodSpec": """
        activeDeadlineSeconds affinity:Affinity automountServiceAccountToken containers:Container
        dnsConfig:PodDNSConfig dnsPolicy=DNSPolicy enableServiceLinks ephemeralContainers:EphemeralContainer
        evictionResponders hostAliases:HostAlias hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
        imagePullSecrets:LocalObjectReference initContainers:Container nodeName nodeSelector os:PodOS overhead
        preemptionPolicy=PreemptionPolicy priority priorityClassName readinessGates:PodReadinessGate
        resourceClaims:PodResourceClaim resources restartPolicy=RestartPolicy runtimeClassName schedulerName
        schedulingGates:PodSchedulingGate schedulingGroup securityContext:PodSecurityContext serviceAccount
        serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds
        tolerations:Toleration topologySpreadConstraints:TopologySpreadConstraint volumes:Volume workloadRef
    """,
    "Container": """
        args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy=PullPolicy lifecycle:Lifecycle
        livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy:ContainerResizePolicy resources
        restartPolicy=ContainerRestartPolicy restartPolicyRules:ContainerRestartRule securityContext:SecurityContext
        startupProbe:Probe stdin stdinOnce terminationMessagePath terminationMessagePolicy=TerminationMessagePolicy tty
        volumeDevices:VolumeDevice volumeMounts:VolumeMount workingDir
    """,
    "EphemeralContainer": """
        args command env:EnvVar envFrom:EnvFromSource image imagePullPolicy=PullPolicy lifecycle:Lifecycle
        livenessProbe:Probe name ports:ContainerPort readinessProbe:Probe resizePolicy:ContainerResizePolicy resources
        restartPolicy=ContainerRestartPolicy restartPolicyRules:ContainerRestartRule securityContext:SecurityContext
        startupProbe:Probe stdin stdinOnce targetContainerName terminationMessagePath
        terminationMessagePolicy=TerminationMessagePolicy tty volumeDevices:VolumeDevice volumeMounts:VolumeMount
        workingDir
    """,
    "ContainerResizePolicy": "resourceName restartPolicy=ResourceResizeRestartPolicy",
    "ContainerRestartRule": "action=ContainerRestartRuleAction exitCodes:ContainerRestartRuleOnExitCodes",
    "ContainerRestartRuleOnExitCodes": "operator=ContainerRestartRuleOnExitCodesOperator values",
    "ObjectMeta": """
        annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
        generation labels managedFields name namespace ownerReferences:OwnerReference resourceVersion selfLink uid
    """,
    "OwnerReference": "apiVersion blockOwnerDeletion controller kind name uid",
    "EnvVar": "name value valueFrom:EnvVarSource",
    "EnvVarSource": """
        configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector fileKeyRef:FileKeySelector
        resourceFieldRef:ResourceFieldSelector secretKeyRef:SecretKeySelector
    """,
    "ConfigMapKeySelector": "key name optional",
    "FileKeySelector": "key optional path volumeName",
    "SecretKeySelector": "key name optional",
    "ObjectFieldSelector": "apiVersion fieldPath",
    "ResourceFieldSelector": "containerName divisor resource",
    "EnvFromSource": "configMapRef:ConfigMapEnvSource prefix secretRef:SecretEnvSource",
    "ConfigMapEnvSource": "name optional",
    "SecretEnvSource": "name optional",
    "VolumeMount": """
        bindMountOptions mountPath mountPropagation=MountPropagationMode name readOnly
        recursiveReadOnly=RecursiveReadOnlyMode subPath subPathExpr
    """,
    "VolumeDevice": "devicePath name",
    "ContainerPort": "containerPort hostIP hostPort name protocol=Protocol",
    "Probe": """
        exec:ExecAction failureThreshold grpc:GRPCAction httpGet:HTTPGetAction initialDelaySeconds periodSeconds
        successThreshold tcpSocket:TCPSocketAction terminationGracePeriodSeconds timeoutSeconds
    """,
    "ExecAction": "command",
    "GRPCAction": "mode port service",
    "HTTPGetAction": "host httpHeaders:HTTPHeader path port protocol scheme=URIScheme",
    "HTTPHeader": "name value",
    "TCPSocketAction": "host port",
    "Lifecycle": "postStart:LifecycleHandler preStop:LifecycleHandler stopSignal",
    "LifecycleHandler": "exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction tcpSocket:TCPSocketAction",
    "SleepAction": "seconds",
    "SecurityContext": """
        allowPrivilegeEscalation appArmorProfile:AppArmorProfile capabilities:Capabilities privileged
        procMount=ProcMountType readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser
        seLinuxOptions:SELinuxOptions seccompProfile:SeccompProfile windowsOptions:WindowsSecurityContextOptions
    """,
    "AppArmorProfile": "localhostProfile type=SecurityProfileType",
    "SeccompProfile": "localhostProfile type=SecurityProfileType",
    "SELinuxOptions": "level role type user",
    "WindowsSecurityContextOptions": "gmsaCredentialSpec gmsaCredentialSpecName hostProcess runAsUserName",
    "Capabilities": "add drop",
    "PodSecurityContext": """
        appArmorProfile:AppArmorProfile fsGroup fsGroupChangePolicy=PodFSGroupChangePolicy runAsGroup runAsNonRoot
        runAsUser seLinuxChangePolicy=PodSELinuxChangePolicy seLinuxOptions:SELinuxOptions
        seccompProfile:SeccompProfile supplementalGroups supplementalGroupsPolicy=SupplementalGroupsPolicy
        sysctls:Sysctl windowsOptions:WindowsSecurityContextOptions
    """,
    "Sysctl": "name value",
    "PodOS": "name=OSName",
    "PodReadinessGate": "conditionType",
    "PodSchedulingGate": "name",
    "LocalObjectReference": "name",
    "Toleration": "effect=TaintEffect key operator=TolerationOperator tolerationSeconds value",
    "TopologySpreadConstraint": """
        labelSelector:LabelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy=NodeInclusionPolicy
        nodeTaintsPolicy=NodeInclusionPolicy topologyKey whenUnsatisfiable=UnsatisfiableConstraintAction
    """,
    "Affinity": "nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity",
    "NodeAffinity": """
        preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm
        requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
    """,
    "NodeSelector": "nodeSelectorTerms:NodeSelectorTerm",
    "PreferredSchedulingTerm": "preference:NodeSelectorTerm weight",
    "NodeSelectorTerm": "matchExpressions:NodeSelectorRequirement matchFields:NodeSelectorRequirement",
    "NodeSelectorRequirement": "key operator=NodeSelectorOperator values",
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
    "LabelSelectorRequirement": "key operator=LabelSelectorOperator values",
    "Volume": """
        awsElasticBlockStore azureDisk azureFile cephfs cinder configMap:ConfigMapVolumeSource csi:CSIVolumeSource
        downwardAPI:DownwardAPIVolumeSource emptyDir:EmptyDirVolumeSource ephemeral:EphemeralVolumeSource fc
        flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath:HostPathVolumeSource image:ImageVolumeSource
        iscsi name nfs:NFSVolumeSource persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk
        portworxVolume projected:ProjectedVolumeSource quobyte rbd scaleIO secret:SecretVolumeSource storageos
        vsphereVolume
    """,
    "ConfigMapVolumeSource": "defaultMode defaultUser items:KeyToPath name optional",
    "SecretVolumeSource": "defaultMode defaultUser items:KeyToPath optional secretName",
    "KeyToPath": "key mode path user",
    "CSIVolumeSource": "driver fsType nodePublishSecretRef:LocalObjectReference readOnly volumeAttributes",
    "DownwardAPIVolumeSource": "defaultMode defaultUser items:DownwardAPIVolumeFile",
    "DownwardAPIVolumeFile": "fieldRef:ObjectFieldSelector mode path resourceFieldRef:ResourceFieldSelector user",
    "EmptyDirVolumeSource": "medium mode sizeLimit",
    "EphemeralVolumeSource": "volumeClaimTemplate:PersistentVolumeClaimTemplate",
    "PersistentVolumeClaimTemplate": "metadata:ObjectMeta spec:PersistentVolumeClaimSpec",
    "PersistentVolumeClaimSpec": """
        accessModes=PersistentVolumeAccessMode dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
        resources:VolumeResourceRequirements selector:LabelSelector storageClassName volumeAttributesClassName
        volumeMode=PersistentVolumeMode volumeName
    """,
    "TypedLocalObjectReference": "apiGroup kind name",
    "TypedObjectReference": "apiGroup kind name namespace",
    "VolumeResourceRequirements": "limits requests",
    "HostPathVolumeSource": "path type=HostPathType",
    "ImageVolumeSource": "pullPolicy=PullPolicy reference",
    "NFSVolumeSource": "path readOnly server",
    "PersistentVolumeClaimVolumeSource": "claimName readOnly",
    "ProjectedVolumeSource": "defaultMode defaultUser sources:VolumeProjection",
    "VolumeProjection": """
        clusterTrustBundle:ClusterTrustBundleProjection configMap:ConfigMapProjection
        downwardAPI:DownwardAPIProjection podCertificate:PodCertificateProjection secret:SecretProjection
        serviceAccountToken:ServiceAccountTokenProjection
    """,
    "ClusterTrustBundleProjection": "labelSelector:LabelSelector name optional path signerName user",
    "PodCertificateProjection": """
        certificateChainPath credentialBundlePath keyPath keyType maxExpirationSeconds signerName user userAnnotations
    """,
    "ConfigMapProjection": "items:KeyToPath name optional",
    "DownwardAPIProjection": "items:DownwardAPIVolumeFile",
    "SecretProjection": "items:KeyToPath name optional",
    "ServiceAccountTokenProjection": "audience expirationSeconds path user",
    "PodResourceClaim": "name resourceClaimName resourceClaimTemplateName",
    "PodDNSConfig": "nameservers options:PodDNSConfigOption searches",
    "PodDNSConfigOption": "name value",
    "HostAlias": "hostnames ip",
}
"""Fields by type, each with its type if that is here too, or with the name of its values."""

_CLAIM_FIELDS = {
    "ResourceClaim": "apiVersion kind metadata:ObjectMeta spec:ResourceClaimSpec status",
    "ResourceClaimTemplate": "apiVersion kind metadata:ObjectMeta spec:ResourceClaimTemplateSpec",
    "ResourceClaimTemplateSpec": "metadata:ObjectMeta spec:ResourceClaimSpec",
    "ResourceClaimSpec": "devices:DeviceClaim",
    "DeviceClaim": "config:DeviceClaimConfiguration constraints:DeviceConstraint requests:DeviceRequest",
    "DeviceClaimConfiguration": "opaque:OpaqueDeviceConfiguration requests",
    "OpaqueDeviceConfiguration": "driver parameters",
    "DeviceConstraint": "distinctAttribute matchAttribute requests",
    "DeviceRequest": "exactly:ExactDeviceRequest firstAvailable:DeviceSubRequest name",
    "ExactDeviceRequest": """
        adminAccess allocationMode=DeviceAllocationMode capacity:CapacityRequirements count deviceClassName
        derivedAttributes:DeviceDerivedAttribute selectors:DeviceSelector tolerations:DeviceToleration
    """,
    "DeviceSubRequest": """
        allocationMode=DeviceAllocationMode capacity:CapacityRequirements count
        derivedAttributes:DeviceDerivedAttribute deviceClassName name selectors:DeviceSelector
        tolerations:DeviceToleration
    """,
    "CapacityRequirements": "requests",
    "DeviceDerivedAttribute": "expression name",
    "DeviceSelector": "cel:CELDeviceSelector",
    "CELDeviceSelector": "expression",
    "DeviceToleration": "effect=DeviceTaintEffect key operator=DeviceTolerationOperator tolerationSeconds value",
}

FIELD_VALUES: Mapping[str, tuple[str, ...]] = {
    "ContainerRestartPolicy": ("Always", "Never", "OnFailure"),
    "ContainerRestartRuleAction": ("Restart", "RestartAllContainers"),
    "ContainerRestartRuleOnExitCodesOperator": ("In", "NotIn"),
    "DNSPolicy": ("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "DeviceAllocationMode": ("", "All", "ExactCount"),
    "DeviceTaintEffect": ("", "NoExecute", "NoSchedule", "None"),
    "DeviceTolerationOperator": ("", "Equal", "Exists"),
    "HostPathType": (
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ),
    "LabelSelectorOperator": ("DoesNotExist", "Exists", "In", "NotIn"),
    "MountPropagationMode": ("Bidirectional", "HostToContainer", "None"),
    "NodeInclusionPolicy": ("Honor", "Ignore"),
    "NodeSelectorOperator": ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"),
    "OSName": ("linux", "windows"),
    "PersistentVolumeAccessMode": ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"),
    "PersistentVolumeMode": ("Block", "Filesystem"),
    "PodFSGroupChangePolicy": ("Always", "OnRootMismatch"),
    "PodSELinuxChangePolicy": ("MountOption", "Recursive"),
    "PreemptionPolicy": ("", "Never", "PreemptLowerPriority"),
    "ProcMountType": ("Default", "Unmasked"),
    "Protocol": ("", "SCTP", "TCP", "UDP"),
    "PullPolicy": ("", "Always", "IfNotPresent", "Never"),
    "RecursiveReadOnlyMode": ("Disabled", "Enabled", "IfPossible"),
    "ResourceResizeRestartPolicy": ("NotRequired", "RestartContainer"),
    "RestartPolicy": ("", "Always", "Never", "OnFailure"),
    "SecurityProfileType": ("Localhost", "RuntimeDefault", "Unconfined"),
    "SupplementalGroupsPolicy": ("Merge", "Strict"),
    "TaintEffect": ("", "NoExecute", "NoSchedule", "PreferNoSchedule"),
    "TerminationMessagePolicy": ("", "FallbackToLogsOnError", "File"),
    "TolerationOperator": ("", "Equal", "Exists", "Gt", "Lt"),
    "URIScheme": ("", "HTTP", "HTTPS"),
    "UnsatisfiableConstraintAction": ("DoNotSchedule", "ScheduleAnyway"),
}
"""The values of the fields that have a fixed set; an empty one only where it stands for a default."""


class FieldKind(NamedTuple):
    """The kind of a field.

    Attributes:
        type_name: A type of `POD_FIELDS` or `CLAIM_FIELDS`; "" where its fields are not checked.
        values: Its values; () for any.
    """

    type_name: str = ""
    values: tuple[str, ...] = ()


def _field_kind(field: str) -> tuple[str, FieldKind]:
    name, _, type_name = field.partition(":")
    name, _, values = name.partition("=")
    return name, FieldKind(type_name, FIELD_VALUES[values] if values else ())


FieldKinds = Mapping[str, Mapping[str, FieldKind]]
"""Kinds of the fields by type."""


def _parse_fields(fields_by_type: Mapping[str, str]) -> FieldKinds:
    return {name: dict(map(_field_kind, fields.split())) for name, fields in fields_by_type.items()}


POD_FIELDS, CLAIM_FIELDS = _parse_fields(_FIELDS), _parse_fields(_CLAIM_FIELDS)
_KNOWN_FIELDS: FieldKinds = {**POD_FIELDS, **CLAIM_FIELDS}


class WrongField(NamedTuple):
    """A field that Kubernetes does not know, or whose value it does not know.

    Attributes:
        meant: The known field that is meant; "" if none is near, or the field itself is known.
        value: Its value, if that is wrong.
        values: The values that it may have.
    """

    path: FieldPath
    meant: str = ""
    value: str = ""
    values: tuple[str, ...] = ()


def find_wrong_fields(data: Any, type_name: str = "Pod") -> Iterator[WrongField]:
    """Yield the fields of an object that nearly are fields of its type, and those with a wrong value."""
    for wrong in islice(_find_wrong(data, FieldKind(type_name), ()), MAX_WRONG_FIELDS):
        if wrong.meant or wrong.values:
            yield wrong


def _find_wrong(data: Any, kind: FieldKind, path: FieldPath) -> Iterator[WrongField]:
    """Yield a value that its kind does not have, or the unknown fields of an object, and those in its parts."""
    if isinstance(data, list):
        for index, each in enumerate(data):
            yield from _find_wrong(each, kind, (*path, index))
    elif isinstance(data, str) and kind.values and data not in kind.values:
        yield WrongField(path, value=data, values=tuple(filter(None, kind.values)))
    elif isinstance(data, dict) and kind.type_name:
        fields = _KNOWN_FIELDS[kind.type_name]
        for key, value in data.items():
            if key in fields:
                yield from _find_wrong(value, fields[key], (*path, key))
            else:
                yield WrongField((*path, key), _closest_field(str(key)[:MAX_FIELD_LENGTH], kind.type_name))


@request_cache(1024)
def _closest_field(found: str, type_name: str) -> str:
    fields = {field.lower(): field for field in _KNOWN_FIELDS[type_name]}
    close = get_close_matches(found.lower(), fields, n=1, cutoff=MIN_SIMILARITY)
    return fields[close[0]] if close else ""
