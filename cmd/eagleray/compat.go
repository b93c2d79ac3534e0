package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/ops/compat"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// compatTopics are what compat prints, in this order.
var compatTopics = []string{"flags", "routes", "metrics", "models"}

// newCompat prints how flags, routes, metrics and models stand to vLLM's.
func newCompat() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "compat [flags|routes|metrics|models]",
		Short: "Print how flags, routes, metrics and models stand to vLLM's",
		Long: `compat prints each flag of serve, each route, each metric and each architecture of models with one of
these words:

  same        works as in vLLM
  differs     works, with the difference named
  ours        vLLM does not have it under this name
  no effect   accepted with a warning, because what it asks for happens anyway
  refused     vLLM's, and not here yet: a flag ends the start, a path answers 404

A flag that is not in the list is unknown, and ends the start with exit code 2; an architecture that is
not is refused before anything is loaded. Of a model_type only the language model is served.`,
		Args:      cli.Arguments(0, 1),
		ValidArgs: compatTopics,
		RunE: func(c *cobra.Command, args []string) error {
			topics := compatTopics
			if len(args) == 1 {
				topics = args
			}
			tables := map[string][]compat.Entry{}
			for _, topic := range topics {
				if !slices.Contains(compatTopics, topic) {
					return cli.UsageError("%s: %q is not one of %s", c.CommandPath(), topic,
						strings.Join(compatTopics, ", "))
				}
				entries, err := compatEntries(c.Root(), topic)
				if err != nil {
					return err
				}
				tables[topic] = entries
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetEscapeHTML(false)
				e.SetIndent("", "    ")
				return e.Encode(tables)
			}
			return writeCompat(os.Stdout, topics, tables)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON object with a list for each topic")
	return c
}

func compatEntries(root *cobra.Command, topic string) ([]compat.Entry, error) {
	switch topic {
	case "flags":
		serve, _, err := root.Find([]string{"serve"})
		if err != nil {
			return nil, err
		}
		return config.Compat(serve.Flags()), nil
	case "routes":
		return api.Compat(), nil
	case "models":
		return modelEntries(), nil
	}
	return metrics.Compat()
}

// modelEntries are the architectures, then the model types of what has encoders beside one of them.
func modelEntries() (list []compat.Entry) {
	for _, name := range model.Architectures() {
		list = append(list, compat.Entry{Name: name, Status: compat.Same})
	}
	for _, name := range model.Wholes() {
		list = append(list, compat.Entry{Name: "model_type " + name, Status: compat.Differs,
			Note: "the language model alone, without encoders"})
	}
	return list
}

// writeCompat prints a table of each topic, under its name if there are several.
func writeCompat(to io.Writer, topics []string, tables map[string][]compat.Entry) error {
	var b bytes.Buffer
	for i, topic := range topics {
		if len(topics) > 1 {
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "%s\n\n", topic)
		}
		names, statuses := 0, 0
		for _, e := range tables[topic] {
			names, statuses = max(names, len(e.Name)), max(statuses, len(e.Status))
		}
		for _, e := range tables[topic] {
			line := fmt.Sprintf("%-*s  %-*s  %s", names, e.Name, statuses, e.Status, e.Note)
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
	}
	_, err := to.Write(b.Bytes())
	return err
}
