// Nvidia prints what NVIDIA's programs read from configurations: a line of JSON in, a line of JSON out.
//
// A line has the program ("mig-parted" or "device-plugin") and the text of its configuration. The answer has what the
// program read, or its error.
package main

import (
	"encoding/json"
	"log"
	"os"

	plugin "github.com/NVIDIA/k8s-device-plugin/api/config/v1"
	"github.com/urfave/cli/v2"
)

type question struct{ Program, Text string }

type answer struct {
	Read  any    `json:"read"`
	Error string `json:"error"`
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for in.More() {
		var asked question
		if err := in.Decode(&asked); err != nil {
			log.Fatal(err)
		}
		read, err := parse(asked)
		found := answer{Read: read}
		if err != nil {
			found = answer{Error: err.Error()}
		}
		if err := out.Encode(found); err != nil {
			log.Fatal(err)
		}
	}
}

func parse(asked question) (any, error) {
	if asked.Program == "mig-parted" {
		return parseLayouts(asked.Text)
	}
	return parsePluginConfig(asked.Text)
}

// parsePluginConfig reads a configuration as the device plugin does when it starts with --config-file.
func parsePluginConfig(text string) (config *plugin.Config, err error) {
	file, err := os.CreateTemp("", "config")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	if err = os.WriteFile(file.Name(), []byte(text), 0o600); err != nil {
		return nil, err
	}
	flags := []cli.Flag{&cli.StringFlag{Name: "config-file"}}
	app := &cli.App{Flags: flags, Action: func(context *cli.Context) (err error) {
		config, err = plugin.NewConfig(context, flags)
		return err
	}}
	return config, app.Run([]string{"nvidia-device-plugin", "--config-file", file.Name()})
}
