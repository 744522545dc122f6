// Releases whose CustomResourceDefinitions tests apply. Nothing of them is built.
module rightslice.dev/controlplane/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/kubeflow/trainer/v2 v2.2.1
	github.com/kyverno/kyverno v1.13.4
	github.com/openreports/reports-api v0.2.1
	github.com/prometheus-operator/prometheus-operator v0.92.1
	sigs.k8s.io/jobset v0.12.0
	sigs.k8s.io/karpenter v1.14.1
	sigs.k8s.io/kueue v0.19.0
)
