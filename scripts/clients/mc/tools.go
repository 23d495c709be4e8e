//go:build tools

// Package mc names MinIO's command line, a program under the AGPL that the tests run.
package mc

import _ "github.com/minio/mc"
