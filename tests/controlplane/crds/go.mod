// Releases whose CustomResourceDefinitions tests apply. Nothing of them is built.
module rightslice.dev/controlplane/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.92.1
)
