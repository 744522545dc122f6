// The webhook that most people would write: net/http, encoding/json into k8s.io/api types, one constant patch.
// It decides nothing, so whatever it costs is the price of the plumbing alone.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"

	admission "k8s.io/api/admission/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const maxBody = 7 * 1024 * 1024

var patch = []byte(`[{"op":"add","path":"/metadata/labels/example.com~1a","value":"b"}]`)

func mutate(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	var review admission.AdmissionReview
	var pod core.Pod
	if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
		http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	if err := json.Unmarshal(review.Request.Object.Raw, &pod); err != nil {
		http.Error(w, "not a Pod", http.StatusBadRequest)
		return
	}
	kind := admission.PatchTypeJSONPatch
	answer, err := json.Marshal(admission.AdmissionReview{
		TypeMeta: meta.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Response: &admission.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: patch, PatchType: &kind},
	})
	if err != nil {
		http.Error(w, "cannot answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer)
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8443", "address")
	cert := flag.String("cert", "tls.crt", "certificate file")
	key := flag.String("key", "tls.key", "key file")
	flag.Parse()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", mutate)
	log.Fatal(http.ListenAndServeTLS(*listen, *cert, *key, mux))
}
