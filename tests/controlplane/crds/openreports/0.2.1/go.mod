module rightslice.dev/controlplane/crds/openreports

go 1.24.0

require github.com/openreports/reports-api v0.2.1
