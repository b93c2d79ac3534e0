package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eagleray/eagleray/cmd/internal/cli"
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// newChat talks to a model in the terminal: one of its own, or a server's.
func newChat() *cobra.Command {
	cfg := config.Default()
	t := talk{remote: remote{client: http.DefaultClient}}
	var quick string
	c := &cobra.Command{
		Use:   "chat [MODEL]",
		Short: "Talk to a model in the terminal",
		Long: `chat answers what is typed, keeping the conversation. The model is a folder, a Hub repo,
the built-in one, or what the server at --url has. Ctrl-C ends an answer, Ctrl-D or /bye the
program; /help lists what else there is. Input that is not typed has a message a line.

  eagleray chat
  eagleray chat --url localhost:8000
  eagleray chat --quick "What does os.Open do?"
  echo "What does strings.Index do?" | eagleray chat`,
		Args: cli.Arguments(0, 1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.UseModel(&cfg, args)
			if err := errors.Join(t.lora.apply(&cfg), cfg.Validate(),
				t.sampling.validate()); err != nil {
				return err
			}
			if t.url != "" && t.lora.path != "" {
				return cli.UsageError("--lora-path with --url: the server has its own adapters, " +
					"which --model-name asks for")
			}
			if t.url != "" && cfg.Model.Path != "" {
				return cli.UsageError("--url: the server has its own model; %q is not used",
					cfg.Model.Path)
			}
			printWarnings(cfg.Warnings)
			t.flags = c.Flags()
			stop, err := t.open(c.Context(), cfg)
			if err != nil {
				return err
			}
			defer stop()
			if quick != "" {
				return t.turn(c.Context(), quick, newScreen(os.Stdout))
			}
			return t.run(c.Context(), os.Stdin, os.Stdout)
		},
	}
	f := c.Flags()
	t.remote.bind(f, "")
	f.StringVar(&t.system, "system", "",
		"what the model is told before the conversation (--system-prompt is the same)")
	f.StringVarP(&quick, "quick", "q", "", "one message to answer, instead of a conversation")
	cli.ModelFlag(f, &cfg)
	t.lora.flag(f)
	cfg.EngineFlags(f)
	t.sampling.flags(f, 0)
	cli.ConfigFlag(c)
	return c
}

// talk is a conversation over the chat API.
type talk struct {
	remote
	flags    *pflag.FlagSet
	sampling sampling
	lora     oneAdapter
	system   string
	messages []generate.Message
	// fields are those of requests that were set in the conversation.
	fields map[string]any
	last   reply
	// where is the place of the model, for people.
	where string
}

// open finds the server, or starts one of this conversation's own.
func (t *talk) open(ctx context.Context, cfg config.Config) (stop func(), err error) {
	if t.url != "" {
		err := t.connect(ctx)
		t.where = "at " + t.url
		return func() {}, err
	}
	return t.startServer(ctx, cfg)
}

// startServer serves a model of one's own to this conversation alone, over connections inside the
// process.
func (t *talk) startServer(ctx context.Context, cfg config.Config) (stop func(), err error) {
	e, err := openEngine(ctx, cfg)
	if err != nil {
		return nil, err
	}
	handler, err := newHandler(ctx, cfg, e, nil, nil, kept{}, nil, nil, wire.Limits{})
	if err != nil {
		return nil, errors.Join(err, e.Stop(ctx))
	}
	conns := newInside()
	server := &http.Server{Handler: handler.Handler()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It ends with http.ErrServerClosed when the conversation is over.
		_ = server.Serve(conns)
	}()
	t.url = "http://127.0.0.1"
	t.model = e.Info().Names[0]
	if t.lora.path != "" {
		t.model = oneName
	}
	t.where, t.timed = "in this process", true
	if n := len(e.Info().Ranks); n > 1 {
		t.where = fmt.Sprintf("in %d worker processes", n)
	}
	t.client = &http.Client{Transport: &http.Transport{DialContext: conns.dial}}
	return func() {
		server.Close()
		<-done
		// The conversation is over; an error of a worker that was ended would tell the user
		// nothing.
		_ = e.Stop(context.WithoutCancel(ctx))
	}, nil
}

// run reads messages and prints answers until the input ends.
func (t *talk) run(ctx context.Context, in, out *os.File) error {
	e := newEditor(ctx, in)
	defer e.close()
	s := newScreen(out)
	if e.terminal() {
		s.note("%s %s. Ctrl-D or /bye leaves, Ctrl-C ends an answer, /help shows more.",
			cmp.Or(t.model, "model"), t.where)
	}
	over, err := e.each(ctx, s, dialogue{
		ask: func(ctx context.Context, text string) error { return t.turn(ctx, text, s) },
		command: func(text string) (is, leave bool) {
			is = strings.HasPrefix(text, "/")
			return is, is && t.command(text, s)
		},
		leave: "Ctrl-D or /bye leaves.", ended: "the answer was ended"})
	if over && e.terminal() {
		fmt.Fprintln(out)
	}
	return err
}

// turn asks one question and keeps it with its answer; a question without any answer is forgotten.
func (t *talk) turn(ctx context.Context, text string, s *screen) error {
	t.messages = append(t.messages, generate.Message{Role: "user", Content: text})
	stop := s.spin()
	answer, err := t.stream(ctx, "/v1/chat/completions", t.body(), func(piece string) {
		stop()
		s.say(piece)
	})
	stop()
	if answer.text == "" && err != nil {
		t.messages = t.messages[:len(t.messages)-1]
		return err
	}
	t.messages = append(t.messages, generate.Message{Role: "assistant", Content: answer.text})
	fmt.Fprintln(s.out)
	t.last = answer
	if t.stats {
		s.note("%s", &t.last)
	}
	return errors.Join(err, s.out.Err)
}

// conversation is what the model is sent.
func (t *talk) conversation() []generate.Message {
	if t.system == "" {
		return t.messages
	}
	return append([]generate.Message{{Role: "system", Content: t.system}}, t.messages...)
}

func (t *talk) body() map[string]any {
	body := t.sampling.fields(t.flags)
	maps.Copy(body, t.fields)
	body["messages"] = t.conversation()
	return body
}

// fields are those of a request that the flags ask for.
func (s *sampling) fields(given *pflag.FlagSet) map[string]any {
	body := map[string]any{}
	if s.maxTokens > 0 {
		body["max_tokens"] = s.maxTokens
	}
	for flag, v := range map[string]any{"temperature": s.temperature, "top-p": s.topP,
		"top-k": s.topK} {
		if given.Changed(flag) {
			body[strings.ReplaceAll(flag, "-", "_")] = v
		}
	}
	if len(s.stop) > 0 {
		body["stop"] = s.stop
	}
	if s.ignoreEOS {
		body["ignore_eos"] = true
	}
	return body
}

// commands are what a line of a conversation may be besides a message.
var commands = map[string]string{
	"/help":   "this list",
	"/clear":  "forget the conversation",
	"/system": "/system TEXT tells the model something before the conversation; /system shows it",
	"/set": "/set NAME VALUE sets a field of requests, such as temperature 0.2; /set NAME takes " +
		"it back, /set shows them",
	"/stats": "show tokens and times after each answer, or no longer",
	"/save":  "/save FILE writes the conversation as JSON",
	"/bye":   "leave, as Ctrl-D",
}

// command does what a line that begins with a slash asks for; true is the end.
func (t *talk) command(line string, s *screen) (leave bool) {
	name, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch strings.TrimSpace(name) {
	case "/help", "/?":
		for _, c := range slices.Sorted(maps.Keys(commands)) {
			s.note("%-8s %s", c, commands[c])
		}
		s.note("%-8s begins and ends a message of several lines; a line that ends in \\ goes on, "+
			"pasted lines stay together", block)
		s.note("%-8s ends an answer; a line that begins with a space is sent even if a slash "+
			"follows", "Ctrl-C")
	case "/clear":
		t.messages = nil
		s.note("the conversation is forgotten")
	case "/system":
		if rest != "" {
			t.system = rest
		}
		s.note("system: %s", cmp.Or(t.system, "(none)"))
	case "/set":
		s.note("%s", t.set(rest))
	case "/stats":
		t.stats = !t.stats
		switch {
		case !t.stats:
			s.note("figures are shown no longer")
		case t.last.text == "":
			s.note("figures are shown after each answer")
		default:
			s.note("%s", &t.last)
		}
	case "/save":
		s.note("%s", t.save(rest))
	case "/bye", "/exit", "/quit":
		return true
	default:
		s.note("there is no command %s; /help lists them", name)
	}
	return false
}

// ownFields are those of a request that the conversation itself makes.
var ownFields = []string{"messages", "model", "stream", "stream_options", "n", "tools"}

// set sets or takes back a field of requests, or shows them, and says so. A value that is no JSON
// is a text. What the server does not take it refuses by name, with the next message.
func (t *talk) set(line string) string {
	name, value, _ := strings.Cut(line, " ")
	name, value = strings.ReplaceAll(name, "-", "_"), strings.TrimSpace(value)
	switch {
	case name == "":
		fields := t.body()
		var shown []string
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			if raw, err := json.Marshal(fields[k]); err == nil && k != "messages" {
				shown = append(shown, k+" "+string(raw))
			}
		}
		return cmp.Or(strings.Join(shown, ", "), "nothing is set: the model's own values hold")
	case slices.Contains(ownFields, name):
		return name + " is the conversation's own"
	case value == "":
		if _, found := t.fields[name]; !found {
			return name + " is not set here"
		}
		delete(t.fields, name)
		return name + " is as it was"
	}
	var v any
	if json.Unmarshal([]byte(value), &v) != nil {
		v = value
	}
	if t.fields == nil {
		t.fields = map[string]any{}
	}
	t.fields[name] = v
	return fmt.Sprintf("%s is %s", name, value)
}

// save writes the conversation as a request would have it, and says so.
func (t *talk) save(path string) string {
	if path == "" {
		return "/save needs the name of a file"
	}
	raw, err := json.MarshalIndent(map[string]any{"model": t.model, "messages": t.conversation()},
		"", "  ")
	if err == nil {
		err = os.WriteFile(path, append(raw, '\n'), 0o600)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d messages are in %s", len(t.conversation()), path)
}
