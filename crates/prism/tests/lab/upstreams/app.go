// An application behind Prism, for tests: it counts what it carries out, and answers in every way
// that HTTP/1.1 has.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var (
	name    = os.Args[1]
	mutex   sync.Mutex
	counts  = map[string]int{}
	bad     atomic.Bool
	pattern = make([]byte, 1<<20)
)

// Counts a request by its identifier.
func count(r *http.Request) {
	if id := r.Header.Get("X-Id"); id != "" {
		mutex.Lock()
		counts[id]++
		mutex.Unlock()
	}
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.URL.Query().Get(name))
	return n
}

// A body of n bytes that every instance makes alike.
func send(w io.Writer, n int) {
	for n > 0 {
		piece := min(n, len(pattern))
		if _, err := w.Write(pattern[:piece]); err != nil {
			return
		}
		n -= piece
	}
}

func handle(path string, answer http.HandlerFunc) {
	http.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		count(r)
		w.Header().Set("X-Backend", name)
		answer(w, r)
	})
}

// Takes the connection over, as WebSocket servers do, and sends all bytes back.
func tunnel(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "echo" {
		http.Error(w, "no upgrade", http.StatusUpgradeRequired)
		return
	}
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Backend: %s\r\n\r\n", name)
	both.Flush()
	lines := bufio.NewReader(both)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprint(both, line)
		both.Flush()
	}
}

func main() {
	for n := range pattern {
		pattern[n] = byte(n * 7 % 251)
	}
	handle("/health", func(w http.ResponseWriter, r *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	handle("/bad", func(w http.ResponseWriter, r *http.Request) { bad.Store(r.URL.Query().Get("is") == "1") })
	handle("/counts", func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		json.NewEncoder(w).Encode(counts)
	})
	// A body of `n` bytes with its length, after `ms` milliseconds.
	handle("/bytes", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Duration(number(r, "ms")) * time.Millisecond)
		w.Header().Set("Content-Length", strconv.Itoa(number(r, "n")))
		send(w, number(r, "n"))
	})
	// The same in chunks, with a trailer.
	handle("/chunks", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		for n := number(r, "n"); n > 0; n -= 10_000 {
			send(w, min(n, 10_000))
			w.(http.Flusher).Flush()
		}
		w.Header().Set("X-Sum", "seven")
	})
	// The digest of the body, and the trailer of the request.
	handle("/digest", func(w http.ResponseWriter, r *http.Request) {
		hash := sha256.New()
		n, _ := io.Copy(hash, r.Body)
		fmt.Fprintf(w, "%d %s %s\n", n, hex.EncodeToString(hash.Sum(nil)), r.Trailer.Get("X-Sum"))
	})
	// The body as it comes.
	handle("/echo", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	handle("/refuse", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "no", http.StatusForbidden)
	})
	handle("/headers", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		json.NewEncoder(w).Encode(r.Header)
	})
	handle("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", n)
			w.(http.Flusher).Flush()
			time.Sleep(200 * time.Millisecond)
		}
	})
	handle("/none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	handle("/tunnel", tunnel)
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], nil))
	os.Exit(1)
}
