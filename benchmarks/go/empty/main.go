// The least that a webhook can be: it reads the uid of a review and says yes. What creates cost above it is the price
// of being asked at all.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
)

const maxBody = 7 * 1024 * 1024

type review struct {
	Request struct {
		UID string `json:"uid"`
	} `json:"request"`
}

func allow(w http.ResponseWriter, r *http.Request) {
	var asked review
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&asked); err != nil {
		http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	const answer = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`
	_, _ = fmt.Fprintf(w, answer, asked.Request.UID)
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8443", "address")
	cert := flag.String("cert", "tls.crt", "certificate file")
	key := flag.String("key", "tls.key", "key file")
	flag.Parse()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", allow)
	log.Fatal(http.ListenAndServeTLS(*listen, *cert, *key, mux))
}
