//go:build tools

// Package rivals names the server versitygw, which `prism-lab bench upstream` has behind Prism.
package rivals

import (
	_ "github.com/versity/versitygw/cmd/versitygw"
)
