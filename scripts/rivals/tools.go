//go:build tools

// Package rivals names the servers that `prism-lab bench store` measures beside Prism.
package rivals

import (
	_ "github.com/minio/minio"
	_ "github.com/versity/versitygw/cmd/versitygw"
)
