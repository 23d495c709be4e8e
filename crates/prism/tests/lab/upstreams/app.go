// An application behind Prism, for tests: it notes what it carries out, and answers in every way
// that HTTP/1.1 has.
package main

import (
	"bufio"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var (
	name    = os.Args[1]
	journal *os.File
	bad     atomic.Bool
	pattern = make([]byte, 1<<20)
)

// Notes a request by its identifier, so that a kill of this process loses no note.
func count(r *http.Request) {
	if id := r.Header.Get("X-Id"); id != "" {
		fmt.Fprintln(journal, id)
	}
}

func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.URL.Query().Get(name))
	return n
}

func least(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// A body of n bytes that every instance makes alike.
func send(w io.Writer, n int) {
	for n > 0 {
		piece := least(n, len(pattern))
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
	conn, both, err := w.(http.Hijacker).Hijack()
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

// A WebSocket server (RFC 6455) that first says its name, and then sends each message back.
func webSocket(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" {
		http.Error(w, "no upgrade", http.StatusUpgradeRequired)
		return
	}
	conn, both, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	digest := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(digest[:]))
	sendFrame(both, 0x81, []byte(name))
	for {
		first, payload, err := readFrame(both)
		if err != nil {
			return
		}
		switch first & 15 {
		case 8:
			sendFrame(both, first, payload)
			return
		case 9:
			first++
		}
		sendFrame(both, first, payload)
	}
}

func readFrame(r io.Reader) (byte, []byte, error) {
	var start [2]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return 0, nil, err
	}
	length, wide := uint64(start[1]&127), 0
	switch length {
	case 126:
		wide = 2
	case 127:
		wide = 8
	}
	rest := make([]byte, 12)[:wide+4]
	if _, err := io.ReadFull(r, rest); err != nil {
		return 0, nil, err
	}
	switch wide {
	case 2:
		length = uint64(binary.BigEndian.Uint16(rest))
	case 8:
		length = binary.BigEndian.Uint64(rest)
	}
	if length > 1<<20 {
		return 0, nil, io.ErrShortBuffer
	}
	payload := make([]byte, length)
	_, err := io.ReadFull(r, payload)
	for n := range payload {
		payload[n] ^= rest[wide+n%4]
	}
	return start[0], payload, err
}

func sendFrame(both *bufio.ReadWriter, first byte, payload []byte) {
	both.WriteByte(first)
	switch n := len(payload); {
	case n < 126:
		both.WriteByte(byte(n))
	case n < 1<<16:
		both.WriteByte(126)
		binary.Write(both, binary.BigEndian, uint16(n))
	default:
		both.WriteByte(127)
		binary.Write(both, binary.BigEndian, uint64(n))
	}
	both.Write(payload)
	both.Flush()
}

func main() {
	journal, _ = os.OpenFile(os.Args[3], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	for n := range pattern {
		pattern[n] = byte(n * 7 % 251)
	}
	handle("/health", func(w http.ResponseWriter, r *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	handle("/bad", func(w http.ResponseWriter, r *http.Request) { bad.Store(r.URL.Query().Get("is") == "1") })
	// Whether a request is allowed, by its cookie. What was asked is in the answer.
	http.HandleFunc("/verify", func(w http.ResponseWriter, r *http.Request) {
		asked := []string{r.Method, r.Header.Get("X-Forwarded-Method"), r.Header.Get("X-Forwarded-Uri"),
			r.Header.Get("X-Forwarded-For"), r.Header.Get("Range") + r.Header.Get("If-None-Match")}
		w.Header().Set("X-Asked", strings.Join(asked, " "))
		user, err := r.Cookie("login")
		switch {
		case err != nil:
			w.Header().Set("Www-Authenticate", "Basic realm=x")
			w.WriteHeader(http.StatusUnauthorized)
			send(w, 100_000)
		case user.Value == "broken":
			w.WriteHeader(http.StatusInternalServerError)
		case user.Value == "anonymous":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("X-User", user.Value)
			w.Header().Set("Set-Cookie", "seen=1")
			send(w, 3_000)
		}
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
			send(w, least(n, 10_000))
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
	// The body as it comes, on a connection of its own: an answer of Go's server waits for the whole
	// body.
	handle("/echo", func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		var body io.Reader = io.LimitReader(both, r.ContentLength)
		isChunked := r.ContentLength < 0
		if isChunked {
			body = httputil.NewChunkedReader(both)
		}
		if r.Header.Get("Expect") != "" {
			fmt.Fprint(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunks := httputil.NewChunkedWriter(conn)
		io.Copy(chunks, body)
		chunks.Close()
		fmt.Fprint(conn, "\r\n")
		if isChunked {
			both.ReadString('\n')
		}
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
		for n := 0; n < 5; n++ {
			fmt.Fprintf(w, "data: %d\n\n", n)
			w.(http.Flusher).Flush()
			time.Sleep(200 * time.Millisecond)
		}
	})
	// The events up to number `n`, or without end: a client that returns gets those it lacks.
	handle("/ticks", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		last, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
		fmt.Fprint(w, "retry: 50\n\n")
		for end := number(r, "n"); r.Context().Err() == nil && (end == 0 || last < end); {
			last++
			fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last, name)
			w.(http.Flusher).Flush()
			time.Sleep(50 * time.Millisecond)
		}
	})
	handle("/page", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>page</title><link rel=icon href=data:>")
	})
	handle("/none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	handle("/tunnel", tunnel)
	handle("/websocket", webSocket)
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], nil))
	os.Exit(1)
}
