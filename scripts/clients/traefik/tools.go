//go:build tools

// Package traefik names the proxy that the tests run beside Prism.
package traefik

import _ "github.com/traefik/traefik/v3/cmd/traefik"
