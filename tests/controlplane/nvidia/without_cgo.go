//go:build !cgo

package main

import "errors"

func parseLayouts(string) (any, error) {
	return nil, errors.New("mig-parted needs gcc")
}
