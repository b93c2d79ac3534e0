package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"github.com/eagleray/eagleray/cmd/internal/cli"
)

// newComplete completes bare prompts at a server, as vLLM's verb of that name does.
func newComplete() *cobra.Command {
	r := remote{client: http.DefaultClient}
	var s sampling
	var quick string
	c := &cobra.Command{
		Use:   "complete",
		Short: "Complete prompts at a running server",
		Long: `complete asks a server to go on with what is typed, or with each line of standard input, as
bare text: nothing is kept from one prompt to the next. Ctrl-C ends an answer, Ctrl-D the program.

  eagleray complete --quick "The capital of France is"
  eagleray complete --url http://host:8000/v1 --max-tokens 32 < prompts.txt`,
		Args: cli.Arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.validate(); err != nil {
				return err
			}
			if err := r.connect(c.Context()); err != nil {
				return err
			}
			ask := func(ctx context.Context, prompt string, to *screen) error {
				body := s.fields(c.Flags())
				body["prompt"] = prompt
				stop := to.spin()
				defer stop()
				answer, err := r.stream(ctx, "/v1/completions", body, func(piece string) {
					stop()
					to.say(piece)
				})
				stop()
				if answer.text == "" && err != nil {
					return err
				}
				fmt.Fprintln(to.out)
				if r.stats {
					to.note("%s", &answer)
				}
				return errors.Join(err, to.out.Err)
			}
			to := newScreen(os.Stdout)
			if quick != "" {
				return ask(c.Context(), quick, to)
			}
			return completeAll(c.Context(), &r, to, ask)
		},
	}
	f := c.Flags()
	r.bind(f, "localhost:8000")
	f.StringVarP(&quick, "quick", "q", "",
		"one prompt to complete, instead of those that are typed")
	s.flags(f, 128)
	cli.ConfigFlag(c)
	return c
}

// completeAll completes what is typed, or each line of the input.
func completeAll(ctx context.Context, r *remote, to *screen,
	ask func(context.Context, string, *screen) error) error {
	e := newEditor(ctx, os.Stdin)
	defer e.close()
	if e.terminal() {
		to.note("%s at %s completes what you type. Ctrl-D leaves, Ctrl-C ends an answer.", r.model,
			r.url)
	}
	_, err := e.each(ctx, to, dialogue{leave: "Ctrl-D leaves.",
		ask: func(ctx context.Context, text string) error { return ask(ctx, text, to) }})
	return err
}
