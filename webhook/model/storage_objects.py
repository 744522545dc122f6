"""Kubernetes objects about storage: claims, volumes, classes, and what nodes and CSI drivers report.

Only the fields that kube-scheduler's volume plugins read are decoded.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from webhook.model.api_struct import ApiStruct
from webhook.model.pods import NodeSelector, OwnerReference, PodLabelSelector, QuantityText

STORAGE = "storage"
"""Key of the size in requests and capacities."""

BETA_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class ClaimAnnotations(ApiStruct, frozen=True):
    """The annotations of a claim that the scheduler reads; None for a missing one."""

    bind_completed: Any = field(default=None, name="pv.kubernetes.io/bind-completed")
    selected_node: str | None = field(default=None, name="volume.kubernetes.io/selected-node")
    beta_class: str | None = field(default=None, name=BETA_CLASS_ANNOTATION)


class ClaimMetadata(ApiStruct, frozen=True):
    """Metadata of a claim; `deletion_timestamp` is None unless it is being deleted."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: ClaimAnnotations = ClaimAnnotations()
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: Any = None


class VolumeResources(ApiStruct, frozen=True):
    """The size that a claim requests."""

    requests: dict[str, QuantityText] = {}


class VolumeClaimSpec(ApiStruct, frozen=True):
    """A claim's specification; `storage_class_name` is None if it names none, and "" if it rejects every class."""

    access_modes: tuple[str, ...] = ()
    resources: VolumeResources = VolumeResources()
    selector: PodLabelSelector | None = None
    storage_class_name: str | None = None
    volume_attributes_class_name: str = ""
    volume_mode: str = ""
    volume_name: str = ""


class PhaseStatus(ApiStruct, frozen=True):
    """The phase of a claim or volume."""

    phase: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A claim for a volume."""

    metadata: ClaimMetadata = ClaimMetadata()
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: PhaseStatus = PhaseStatus()


class VolumeAnnotations(ApiStruct, frozen=True):
    """The annotation of a volume that the scheduler reads."""

    beta_class: str | None = field(default=None, name=BETA_CLASS_ANNOTATION)


class VolumeMetadata(ApiStruct, frozen=True):
    """Metadata of a volume."""

    name: str = ""
    labels: dict[str, str] = {}
    annotations: VolumeAnnotations = VolumeAnnotations()
    deletion_timestamp: Any = None


class ClaimReference(ApiStruct, frozen=True):
    """The claim that a volume is bound to, or reserved for."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class CsiVolumeSource(ApiStruct, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class GcePersistentDisk(ApiStruct, frozen=True):
    """A disk of Google Cloud, by the plugin that was part of Kubernetes."""

    pd_name: str = ""


class AwsElasticBlockStore(ApiStruct, frozen=True):
    """A disk of AWS, by the plugin that was part of Kubernetes."""

    volume_id: str = field(default="", name="volumeID")


class AzureDisk(ApiStruct, frozen=True):
    """A disk of Azure, by the plugin that was part of Kubernetes."""

    disk_uri: str = field(default="", name="diskURI")
    kind: str = "managed"


class CinderVolume(ApiStruct, frozen=True):
    """A disk of OpenStack, by the plugin that was part of Kubernetes."""

    volume_id: str = field(default="", name="volumeID")


class PortworxVolume(ApiStruct, frozen=True):
    """A volume of Portworx, by the plugin that was part of Kubernetes."""

    volume_id: str = field(default="", name="volumeID")


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """The nodes that can reach a volume."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """A volume's specification. Other sources than these are not counted by node, nor are their topologies changed."""

    access_modes: tuple[str, ...] = ()
    capacity: dict[str, QuantityText] = {}
    claim_ref: ClaimReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str = ""
    volume_attributes_class_name: str = ""
    volume_mode: str = ""
    csi: CsiVolumeSource | None = None
    gce_persistent_disk: GcePersistentDisk | None = None
    aws_elastic_block_store: AwsElasticBlockStore | None = None
    azure_disk: AzureDisk | None = None
    cinder: CinderVolume | None = None
    portworx_volume: PortworxVolume | None = None


class PersistentVolume(ApiStruct, frozen=True):
    """A volume."""

    metadata: VolumeMetadata = VolumeMetadata()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PhaseStatus = PhaseStatus()


class ClassAnnotations(ApiStruct, frozen=True):
    """The annotations by which a StorageClass is the default."""

    is_default: str = field(default="", name="storageclass.kubernetes.io/is-default-class")
    is_default_beta: str = field(default="", name="storageclass.beta.kubernetes.io/is-default-class")


class ClassMetadata(ApiStruct, frozen=True):
    """Metadata of a StorageClass."""

    name: str = ""
    annotations: ClassAnnotations = ClassAnnotations()
    creation_timestamp: Any = None


class TopologySelectorRequirement(ApiStruct, frozen=True):
    """A label that a node must have, and its values."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(ApiStruct, frozen=True):
    """Labels that must all match; without any, no node does."""

    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(ApiStruct, frozen=True):
    """A class of volumes; one without a binding mode binds immediately."""

    metadata: ClassMetadata = ClassMetadata()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class CsiNodeAnnotations(ApiStruct, frozen=True):
    """The plugins of a node whose volumes a CSI driver serves, separated by commas."""

    migrated_plugins: str = field(default="", name="storage.alpha.kubernetes.io/migrated-plugins")


class CsiNodeMetadata(ApiStruct, frozen=True):
    """Metadata of a CSINode, whose name is that of its node."""

    name: str = ""
    annotations: CsiNodeAnnotations = CsiNodeAnnotations()


class VolumeNodeResources(ApiStruct, frozen=True):
    """The number of volumes that a driver can attach to a node; None without a limit."""

    count: int | None = None


class CsiNodeDriver(ApiStruct, frozen=True):
    """A CSI driver on a node, and the node labels that tell which volumes it reaches."""

    name: str = ""
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources = VolumeNodeResources()


class CsiNodeSpec(ApiStruct, frozen=True):
    """The CSI drivers of a node."""

    drivers: tuple[CsiNodeDriver, ...] = ()


class CSINode(ApiStruct, frozen=True):
    """The report of the CSI drivers of a node."""

    metadata: CsiNodeMetadata = CsiNodeMetadata()
    spec: CsiNodeSpec = CsiNodeSpec()


class StorageObjectMetadata(ApiStruct, frozen=True):
    """Metadata; only the name is used."""

    name: str = ""
    namespace: str = ""


class CsiDriverSpec(ApiStruct, frozen=True):
    """A CSI driver's specification."""

    storage_capacity: bool = False


class CSIDriver(ApiStruct, frozen=True):
    """A CSI driver; with `storage_capacity`, it publishes what is free."""

    metadata: StorageObjectMetadata = StorageObjectMetadata()
    spec: CsiDriverSpec = CsiDriverSpec()


class CSIStorageCapacity(ApiStruct, frozen=True):
    """Free storage for volumes of a class on some nodes."""

    metadata: StorageObjectMetadata = StorageObjectMetadata()
    storage_class_name: str = ""
    node_topology: PodLabelSelector | None = None
    capacity: QuantityText | None = None
    maximum_volume_size: QuantityText | None = None


class AttachmentSource(ApiStruct, frozen=True):
    """The attached volume."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(ApiStruct, frozen=True):
    """Which volume is attached, where, and by which driver."""

    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class VolumeAttachment(ApiStruct, frozen=True):
    """A volume that is attached to a node."""

    metadata: StorageObjectMetadata = StorageObjectMetadata()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


StorageObject = (
    PersistentVolumeClaim
    | PersistentVolume
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
)
"""Any object about storage."""
