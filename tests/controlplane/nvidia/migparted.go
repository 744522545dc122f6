//go:build cgo

package main

import (
	parted "github.com/NVIDIA/mig-parted/api/spec/v1"
	"sigs.k8s.io/yaml"
)

// parseLayouts reads a configuration as mig-parted does. Its libraries need gcc.
func parseLayouts(text string) (any, error) {
	var spec parted.Spec
	err := yaml.Unmarshal([]byte(text), &spec)
	return spec, err
}
