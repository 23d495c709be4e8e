// A small application: it reads the object that is asked for, and sends it.
//
// Usage: app ROOT LISTEN [LISTEN PEM]
package main

import (
	"crypto/tls"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

func main() {
	root := os.Args[1]
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, err := os.ReadFile(filepath.Join(root, filepath.Clean(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}
	if len(os.Args) > 4 {
		go func() {
			server := http.Server{Addr: os.Args[3], Handler: http.HandlerFunc(answer)}
			// HTTP/1.1 alone, as all others speak it.
			server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
			log.Fatal(server.ListenAndServeTLS(os.Args[4], os.Args[4]))
		}()
	}
	log.Fatal(http.ListenAndServe(os.Args[2], http.HandlerFunc(answer)))
}
