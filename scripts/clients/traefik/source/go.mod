module prism.invalid/source

go 1.25.0

require github.com/traefik/traefik/v3 v3.6.12
