"""The programs of a real control plane, built from source with nothing but Go and the Go module proxy."""
