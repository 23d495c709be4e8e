// A web application with sessions in memory and WebSockets, as behind a proxy, for tests.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

type session struct {
	User   string
	Visits int
}

var (
	name     = os.Args[1]
	mutex    sync.Mutex
	sessions = map[string]*session{}
	content  = bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	modified = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
)

func login(w http.ResponseWriter, r *http.Request) {
	random := make([]byte, 16)
	rand.Read(random)
	id := hex.EncodeToString(random)
	mutex.Lock()
	sessions[id] = &session{User: r.PostFormValue("user")}
	mutex.Unlock()
	http.SetCookie(w, &http.Cookie{Name: "session", Value: id, Path: "/", HttpOnly: true})
	http.Redirect(w, r, "/account", http.StatusSeeOther)
}

// The user, the number of visits, and the server.
func account(w http.ResponseWriter, r *http.Request) {
	cookie, err := r.Cookie("session")
	mutex.Lock()
	defer mutex.Unlock()
	if err != nil || sessions[cookie.Value] == nil {
		http.Error(w, "no session", http.StatusUnauthorized)
		return
	}
	found := sessions[cookie.Value]
	found.Visits++
	fmt.Fprintf(w, "%s %d %s\n", found.User, found.Visits, name)
}

func digest(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	n, _ := io.Copy(hash, r.Body)
	w.Header().Set("X-Method", r.Method)
	fmt.Fprintf(w, "%d %x\n", n, hash.Sum(nil))
}

func compressed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("Cache-Control", "max-age=60")
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Write(content)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	writer := gzip.NewWriter(w)
	writer.Write(content)
	writer.Close()
}

func chunks(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	for n := 0; n < 20; n++ {
		w.Write(content[:n*1_000])
		w.(http.Flusher).Flush()
	}
	w.Header().Set("X-Sum", "seven")
}

// Sends every message of a WebSocket back (RFC 6455), until the client closes it.
func webSocket(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		http.Error(w, "no upgrade", http.StatusUpgradeRequired)
		return
	}
	conn, both, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	both.Flush()
	for echo(both) == nil {
	}
}

func echo(both *bufio.ReadWriter) error {
	var head [2]byte
	if _, err := io.ReadFull(both, head[:]); err != nil {
		return err
	}
	length := uint64(head[1] & 127)
	switch length {
	case 126:
		var short uint16
		binary.Read(both, binary.BigEndian, &short)
		length = uint64(short)
	case 127:
		binary.Read(both, binary.BigEndian, &length)
	}
	if length > 1<<20 {
		return errors.New("a long message")
	}
	masked := make([]byte, 4+length)
	if _, err := io.ReadFull(both, masked); err != nil {
		return err
	}
	payload := masked[4:]
	for n := range payload {
		payload[n] ^= masked[n%4]
	}
	both.WriteByte(head[0])
	switch {
	case length < 126:
		both.WriteByte(byte(length))
	case length < 1<<16:
		both.WriteByte(126)
		binary.Write(both, binary.BigEndian, uint16(length))
	default:
		both.WriteByte(127)
		binary.Write(both, binary.BigEndian, length)
	}
	both.Write(payload)
	return both.Flush()
}

func main() {
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/login", login)
	http.HandleFunc("/account", account)
	http.HandleFunc("/digest", digest)
	http.HandleFunc("/api/digest", digest)
	http.HandleFunc("/gzip", compressed)
	http.HandleFunc("/chunks", chunks)
	http.HandleFunc("/websocket", webSocket)
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"a-file"`)
		http.ServeContent(w, r, "file.txt", modified, bytes.NewReader(content))
	})
	http.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.Host+"/file?a=b", http.StatusMovedPermanently)
	})
	http.HandleFunc("/item", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"DELETE": 204, "PUT": 201, "PATCH": 200}[r.Method])
	})
	http.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		json.NewEncoder(w).Encode(r.Header)
	})
	for _, address := range os.Args[3:] {
		go http.ListenAndServe(address, nil)
	}
	fmt.Fprintln(os.Stderr, http.ListenAndServe(os.Args[2], nil))
	os.Exit(1)
}
