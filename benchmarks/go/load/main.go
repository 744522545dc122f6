// A load generator over loopback only: a fixed number of POSTs on keep-alive TLS connections, HTTP/1.1 written
// by hand so that it takes little of the machine from the server under test. Bodies are the lines of a file, in
// turn, each request with a uid of its own. Prints one line of JSON.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mostRequests    = 200_000
	mostConnections = 256
	deadline        = 60 * time.Second
	uidLength       = 36
	uidDigits       = 12
)

var uidKey = []byte(`"uid":"`)

type result struct {
	Requests int     `json:"requests"`
	Failed   int64   `json:"failed"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
}

func main() {
	target := flag.String("target", "127.0.0.1:8443", "address; loopback only")
	path := flag.String("path", "/mutate", "path")
	bodyFile := flag.String("bodies", "reviews.jsonl", "file with one review a line")
	requests := flag.Int("requests", 10_000, "how many in all")
	connections := flag.Int("connections", 16, "how many at a time")
	flag.Parse()
	host, _, err := net.SplitHostPort(*target)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		log.Fatal("the target must be a loopback address")
	}
	if *requests > mostRequests || *connections > mostConnections {
		log.Fatal("too many requests or connections")
	}
	text, err := os.ReadFile(*bodyFile)
	if err != nil {
		log.Fatal(err)
	}
	var posts [][]byte
	for line := range bytes.Lines(text) {
		posts = append(posts, post(*target, *path, bytes.TrimSpace(line)))
	}
	if len(posts) == 0 {
		log.Fatal("no reviews")
	}
	json.NewEncoder(os.Stdout).Encode(run(*target, posts, *requests, *connections))
}

// post writes one request. Its first uid must be that of the review.
func post(target, path string, body []byte) []byte {
	request := fmt.Appendf(nil, "POST %s?timeout=5s HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-apiserver-admission\r\n"+
		"Content-Length: %d\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n"+
		"Accept-Encoding: gzip\r\n\r\n", path, target, len(body))
	return append(request, body...)
}

// numbered writes a number over the end of the review's uid, as a copy in buffer.
func numbered(buffer, request []byte, number int64) []byte {
	buffer = append(buffer[:0], request...)
	at := bytes.Index(buffer, uidKey) + len(uidKey) + uidLength - uidDigits
	copy(buffer[at:], fmt.Appendf(nil, "%0*d", uidDigits, number))
	return buffer
}

func run(target string, posts [][]byte, requests, connections int) result {
	var left, failed atomic.Int64
	left.Store(int64(requests))
	latencies := make([][]time.Duration, connections)
	var all sync.WaitGroup
	conns := make([]*tls.Conn, connections)
	for i := range conns {
		dialer := &net.Dialer{Timeout: 5 * time.Second}
		conn, err := tls.DialWithDialer(dialer, "tcp", target, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			log.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(deadline))
		conns[i] = conn
	}
	start := time.Now()
	for i := range conns {
		all.Add(1)
		go func() {
			defer all.Done()
			defer conns[i].Close()
			reader := bufio.NewReaderSize(conns[i], 16<<10)
			var request []byte
			for number := left.Add(-1); number >= 0; number = left.Add(-1) {
				request = numbered(request, posts[number%int64(len(posts))], (start.UnixMicro()+number)%1e12)
				began := time.Now()
				if err := one(conns[i], reader, request); err != nil {
					failed.Add(1)
					fmt.Fprintln(os.Stderr, err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(began))
			}
		}()
	}
	all.Wait()
	seconds := time.Since(start).Seconds()
	merged := slices.Concat(latencies...)
	slices.Sort(merged)
	at := func(share float64) float64 {
		if len(merged) == 0 {
			return 0
		}
		return float64(merged[int(share*float64(len(merged)-1))].Nanoseconds()) / 1e3
	}
	return result{len(merged), failed.Load(), seconds, at(0.50), at(0.99)}
}

func one(conn *tls.Conn, reader *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	status, err := reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.Contains(status, []byte(" 200 ")) {
		return fmt.Errorf("not 200: %q", status)
	}
	length := -1
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		text := strings.TrimSpace(string(line))
		if text == "" {
			break
		}
		if name, value, _ := strings.Cut(text, ":"); strings.EqualFold(name, "content-length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("no content-length")
	}
	_, err = io.CopyN(io.Discard, reader, int64(length))
	return err
}
