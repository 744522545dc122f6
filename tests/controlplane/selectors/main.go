// Selectors prints what the API server and the scheduler make of CEL selectors of devices: a line of JSON in, a line of
// JSON out.
//
// A line is {"expression": text, "devices": [{"driver": name, "device": Device}]}. The answer is {"error": text,
// "estimate": cost, "results": [...], "costs": [...]}: why the API server rejects the expression, or "", its estimate of
// the cost, and for each device "true", "false" or the error, with the cost of the evaluation.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

type publishedDevice struct {
	Driver string             `json:"driver"`
	Device resourceapi.Device `json:"device"`
}

type question struct {
	Expression string            `json:"expression"`
	Devices    []publishedDevice `json:"devices"`
}

type answer struct {
	Error    string   `json:"error"`
	Estimate uint64   `json:"estimate"`
	Results  []string `json:"results"`
	Costs    []uint64 `json:"costs"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64*1024*1024)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for in.Scan() {
		var asked question
		if err := json.Unmarshal(in.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		line, err := json.Marshal(answered(asked))
		if err != nil {
			log.Fatal(err)
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}

func answered(asked question) (given answer) {
	defer func() {
		if failure := recover(); failure != nil {
			given = answer{Error: fmt.Sprintf("panic: %v", failure)}
		}
	}()
	if len(asked.Expression) > resourceapi.CELSelectorExpressionMaxLength {
		return answer{Error: "too long"}
	}
	kind := environment.NewExpressions
	compiled := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(
		asked.Expression, dracel.Options{EnvType: &kind})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error()}
	}
	given.Estimate = compiled.MaxCost
	if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		given.Error = "too complex, exceeds cost limit"
		return given
	}
	for _, one := range asked.Devices {
		result, cost := matched(compiled, one)
		given.Results = append(given.Results, result)
		given.Costs = append(given.Costs, cost)
	}
	return given
}

func matched(compiled dracel.CompilationResult, one publishedDevice) (string, uint64) {
	matches, details, err := compiled.DeviceMatches(context.Background(), dracel.Device{
		Driver:                   one.Driver,
		AllowMultipleAllocations: one.Device.AllowMultipleAllocations,
		Attributes:               one.Device.Attributes,
		Capacity:                 one.Device.Capacity,
	})
	cost := uint64(0)
	if details != nil && details.ActualCost() != nil {
		cost = *details.ActualCost()
	}
	if err != nil {
		return "error: " + err.Error(), cost
	}
	return fmt.Sprint(matches), cost
}
