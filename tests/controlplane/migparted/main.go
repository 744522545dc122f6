// Migparted prints what NVIDIA's mig-parted reads from configurations: a line of JSON text in, a line of JSON out.
//
// Each answer is [specification, error].
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	spec "github.com/NVIDIA/mig-parted/api/spec/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			log.Fatal(err)
		}
		answer := []any{nil, ""}
		var read spec.Spec
		if err := yaml.Unmarshal([]byte(text), &read); err != nil {
			answer[1] = err.Error()
		} else {
			answer[0] = read
		}
		if err := out.Encode(answer); err != nil {
			log.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}
