// Usage: client HOST PORT CA VERSION SUITE LIST DIRECTORY
// GETs the paths of LIST over one connection of crypto/tls, the n-th answer's
// body into DIRECTORY/n. Prints "VERSION SUITE" as negotiated.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(ca, version, suite string) *tls.Config {
	pem, err := os.ReadFile(ca)
	check(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		check(fmt.Errorf("%s holds no certificate", ca))
	}
	number := uint16(tls.VersionTLS13)
	if version == "1.2" {
		number = tls.VersionTLS12
	}
	config := &tls.Config{RootCAs: roots, MinVersion: number, MaxVersion: number}
	for _, known := range tls.CipherSuites() {
		// Those of 1.3 cannot be chosen.
		if known.Name == suite && version == "1.2" {
			config.CipherSuites = []uint16{known.ID}
		}
	}
	return config
}

// Debian 12's Go is older than tls.VersionName.
func versionName(version uint16) string {
	switch version {
	case tls.VersionTLS12:
		return "TLS 1.2"
	case tls.VersionTLS13:
		return "TLS 1.3"
	}
	return "another version"
}

func main() {
	host, port, list, directory := os.Args[1], os.Args[2], os.Args[6], os.Args[7]
	dials := 0
	transport := &http.Transport{
		TLSClientConfig: config(os.Args[3], os.Args[4], os.Args[5]),
		MaxConnsPerHost: 1,
		Dial: func(network, address string) (net.Conn, error) {
			dials++
			return net.Dial(network, address)
		},
	}
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	paths, err := os.ReadFile(list)
	check(err)
	said := ""
	for n, path := range strings.Fields(string(paths)) {
		answer, err := client.Get("https://" + net.JoinHostPort(host, port) + path)
		check(err)
		body, err := io.ReadAll(answer.Body)
		check(err)
		check(answer.Body.Close())
		if answer.StatusCode != 200 {
			check(fmt.Errorf("%s: %s %.300s", path, answer.Status, body))
		}
		check(os.WriteFile(filepath.Join(directory, strconv.Itoa(n)), body, 0o600))
		said = versionName(answer.TLS.Version) + " " + tls.CipherSuiteName(answer.TLS.CipherSuite)
	}
	if dials != 1 {
		check(fmt.Errorf("%d connections", dials))
	}
	transport.CloseIdleConnections()
	fmt.Println(said)
}
