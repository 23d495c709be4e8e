//go:build tools

// Package clients names the Go programs that the tests run.
package clients

import _ "github.com/peak/s5cmd/v2"
