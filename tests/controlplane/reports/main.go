// Reports prints what the Go types of report objects read: a line of JSON with an object in, a line of JSON out.
//
// Kinds are Report of OpenReports, whose types Policy Reporter uses, and PolicyReport as in Kyverno. Decoding is strict: an
// unknown or duplicate field is an error. The answer has the object as the types hold it, or the error.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/kyverno/kyverno/api/policyreport/v1alpha2"
	"github.com/openreports/reports-api/apis/openreports.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

type answer struct {
	Read  any    `json:"read"`
	Error string `json:"error"`
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for in.More() {
		var text json.RawMessage
		if err := in.Decode(&text); err != nil {
			log.Fatal(err)
		}
		read, err := decode(text)
		found := answer{Read: read}
		if err != nil {
			found = answer{Error: err.Error()}
		}
		if err := out.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}

func decode(text []byte) (any, error) {
	var about metav1.TypeMeta
	if err := json.Unmarshal(text, &about); err != nil {
		return nil, err
	}
	switch about.GroupVersionKind().String() {
	case "openreports.io/v1alpha1, Kind=Report":
		return strictly(text, &v1alpha1.Report{})
	case "wgpolicyk8s.io/v1alpha2, Kind=PolicyReport":
		return strictly(text, &v1alpha2.PolicyReport{})
	}
	return nil, fmt.Errorf("no report: %s", about.GroupVersionKind())
}

func strictly(text []byte, object any) (any, error) {
	unknown, err := kjson.UnmarshalStrict(text, object)
	return object, errors.Join(append(unknown, err)...)
}
