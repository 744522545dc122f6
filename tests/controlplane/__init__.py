"""Programs of a real control plane, built from source with only Go and the Go module proxy."""
