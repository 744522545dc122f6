module rightslice.dev/controlplane/crds/wgpolicy

go 1.24.0

require github.com/kyverno/kyverno v1.13.4
