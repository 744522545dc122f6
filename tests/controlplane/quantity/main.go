// Quantity prints what apimachinery makes of quantities: a line of JSON text in, a line of JSON out.
//
// Each answer is [text, value, milli value, text once rounded to thousandths, sign of the comparison with the
// quantity before, text, value and milli value of the sum of both], or null where the text is no quantity. With the
// argument "text" it is the text alone: nothing else is fast for a zero with a large exponent.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	before := resource.MustParse("1")
	for in.Scan() {
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			log.Fatal(err)
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			out.WriteString("null\n")
			continue
		}
		answer, err := json.Marshal(answered(quantity, before, len(os.Args) > 1))
		if err != nil {
			log.Fatal(err)
		}
		out.Write(answer)
		out.WriteByte('\n')
		before = quantity
	}
	if err := in.Err(); err != nil {
		log.Fatal(err)
	}
}

func answered(quantity, before resource.Quantity, textOnly bool) []any {
	if textOnly {
		return []any{quantity.String()}
	}
	rounded := quantity.DeepCopy()
	rounded.RoundUp(resource.Milli)
	sum := before.DeepCopy()
	sum.Add(quantity)
	// The sum's numbers are taken first: printing may turn a quantity into a decimal.
	value, milli := sum.Value(), sum.MilliValue()
	return []any{
		quantity.String(), quantity.Value(), quantity.MilliValue(), rounded.String(),
		before.Cmp(quantity), sum.String(), value, milli,
	}
}
