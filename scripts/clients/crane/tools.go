//go:build tools

// Package crane names a client of container registries that the tests run.
package crane

import _ "github.com/google/go-containerregistry/cmd/crane"
