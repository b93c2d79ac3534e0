package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// answered is what an answer says of a beam.
type answered struct {
	Text         string
	FinishReason string  `json:"finish_reason"`
	StopReason   any     `json:"stop_reason"`
	TokenIDs     []int32 `json:"token_ids"`
	Message      struct{ Content string }
	Logprobs     struct {
		TokenLogprobs []float64 `json:"token_logprobs"`
	}
}

func choices(t *testing.T, url, body string) []answered {
	t.Helper()
	var got struct{ Choices []answered }
	if err := json.Unmarshal([]byte(ask(t, url, body)), &got); err != nil {
		t.Fatal(err)
	}
	return got.Choices
}

// found is a beam of the reference.
type found struct {
	ids []int32
	sum float64
	end int32
}

// searchBeams is beam search without a thought of its cost: every step is taken, every list is
// sorted whole, and each token is a request of its own.
func searchBeams(t *testing.T, url string, prompt []int32, width, tokens int, penalty float64,
	ends []int32) []found {
	t.Helper()
	best := func(list []found) []found {
		score := func(f found) float64 {
			length := len(f.ids)
			if f.end >= 0 {
				length++
			}
			return f.sum / math.Pow(float64(length), penalty)
		}
		sort.SliceStable(list, func(i, j int) bool { return score(list[i]) > score(list[j]) })
		return list[:min(width, len(list))]
	}
	open, ended := []found{{end: -1}}, []found(nil)
	for range tokens {
		var next []found
		for _, f := range open {
			for _, r := range rivals(t, url, slices.Concat(prompt, f.ids), 2*width) {
				longer := found{slices.Concat(f.ids, []int32{r.id}), f.sum + float64(r.logprob), -1}
				if slices.Contains(ends, r.id) {
					ended = append(ended, found{f.ids, longer.sum, r.id})
				} else {
					next = append(next, longer)
				}
			}
		}
		open = best(next)
	}
	return best(append(ended, open...))
}

type rival struct {
	id      int32
	logprob float32
}

// rivals are the most likely tokens after a prompt, as an answer of one token shows them.
func rivals(t *testing.T, url string, prompt []int32, n int) []rival {
	t.Helper()
	ids, err := json.Marshal(prompt)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Choices []struct {
			Logprobs struct {
				TopLogprobs []map[string]float32 `json:"top_logprobs"`
			}
		}
	}
	body := ask(t, url, fmt.Sprintf(
		`{"prompt":%s,"max_tokens":1,"temperature":0,"logprobs":%d,"return_tokens_as_token_ids":true}`, ids, n))
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	var list []rival
	for name, logprob := range got.Choices[0].Logprobs.TopLogprobs[0] {
		r := rival{logprob: logprob}
		if _, err := fmt.Sscanf(name, "token_id:%d", &r.id); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	if len(list) != n {
		t.Fatalf("%d rivals, want %d", len(list), n)
	}
	sort.Slice(list, func(i, j int) bool {
		return list[i].logprob > list[j].logprob || list[i].logprob == list[j].logprob &&
			list[i].id < list[j].id
	})
	return list
}

// TestBeamSearch: the beams are those of a search that spares no cost, with and without ends.
func TestBeamSearch(t *testing.T) {
	url := serve(t, nil).URL + "/v1/completions"
	prompt := []int32{300, 301, 302, 303, 304}
	plain := searchBeams(t, url, prompt, 3, 5, 1, nil)
	if plain[0].end != -1 || len(plain[0].ids) != 5 {
		t.Fatalf("%+v", plain)
	}
	ended, went := 0, 0
	for _, c := range []struct {
		width   int
		penalty float64
		ends    []int32
	}{
		{1, 1, nil},
		{3, 1, nil},
		{3, 0, []int32{plain[0].ids[2], plain[1].ids[3]}},
		{3, 1, []int32{plain[0].ids[2], plain[2].ids[4]}},
		{3, 4, []int32{plain[0].ids[1], plain[1].ids[2]}},
		{3, -1, []int32{plain[0].ids[1], plain[0].ids[3]}},
	} {
		want := searchBeams(t, url, prompt, c.width, 5, c.penalty, c.ends)
		ends, err := json.Marshal(slices.Concat([]int32{}, c.ends))
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(
			`{"prompt":[300,301,302,303,304],"use_beam_search":true,"n":%d,"length_penalty":%g,"max_tokens":5,`+
				`"temperature":0,"return_token_ids":true,"logprobs":0,"stop_token_ids":%s,"ignore_eos":true`, c.width, c.penalty, ends)
		got := choices(t, url, body+"}")
		if len(got) != len(want) {
			t.Fatalf("%d beams, want %d", len(got), len(want))
		}
		included := choices(t, url, body+`,"include_stop_str_in_output":true}`)
		for i, g := range got {
			sum := 0.0
			for _, l := range g.Logprobs.TokenLogprobs {
				sum += l
			}
			reason, stop, whole := "length", any(nil), want[i].ids
			if want[i].end >= 0 {
				ended++
				reason, stop, whole = "stop", float64(want[i].end), slices.Concat(whole,
					[]int32{want[i].end})
			} else {
				went++
				if math.Abs(sum-want[i].sum) > 1e-4 {
					t.Errorf("%+v: beam %d has the sum %g, want %g", c, i, sum, want[i].sum)
				}
			}
			if !slices.Equal(g.TokenIDs, want[i].ids) || g.FinishReason != reason ||
				g.StopReason != stop {
				t.Errorf("%+v: beam %d is %+v, want %+v", c, i, g, want[i])
			}
			if !slices.Equal(included[i].TokenIDs, whole) || included[i].Text != g.Text {
				t.Errorf("%+v: beam %d with its end is %+v, want %v", c, i, included[i], whole)
			}
		}
	}
	if ended < 4 || went < 4 {
		t.Errorf("%d beams ended and %d went on", ended, went)
	}
}

// TestBeamsStopEarly: with early_stopping as many ends as beams are enough, although a longer beam
// would be better; and several prompts have each their own beams.
func TestBeamsStopEarly(t *testing.T) {
	url := serve(t, nil).URL + "/v1/completions"
	first := rivals(t, url, []int32{300, 301}, 2)
	body := fmt.Sprintf(
		`"use_beam_search":true,"n":1,"length_penalty":8,"max_tokens":6,"return_token_ids":true,"ignore_eos":true,"stop_token_ids":[%d]`, first[1].id)
	late := choices(t, url, `{"prompt":[300,301],`+body+"}")
	early := choices(t, url, `{"prompt":[[300,301],[5,6,7]],"early_stopping":true,`+body+"}")
	if len(late) != 1 || len(late[0].TokenIDs) == 0 {
		t.Errorf("without early_stopping: %+v", late)
	}
	if len(early) != 2 || len(early[0].TokenIDs) != 0 || early[0].FinishReason != "stop" {
		t.Errorf("with early_stopping: %+v", early)
	}
	if alone := choices(t, url,
		`{"prompt":[5,6,7],"early_stopping":true,`+body+"}"); !slices.Equal(alone[0].TokenIDs,
		early[1].TokenIDs) {
		t.Errorf("alone %v, beside another prompt %v", alone[0].TokenIDs, early[1].TokenIDs)
	}
}

// TestBeamsOfLayouts: equal requests have equal beams, in chat too, on every layout and whatever
// the prefix cache holds.
func TestBeamsOfLayouts(t *testing.T) {
	const body = `{"messages":[{"role":"user","content":"Name a package."}],"use_beam_search":true,"n":4,"max_tokens":6,"return_token_ids":true}`
	var first []answered
	for i, set := range []func(*config.Config){
		func(*config.Config) {},
		func(c *config.Config) { c.Schedule.Async = false },
		func(c *config.Config) { c.Cache.PrefixCaching = false },
		func(c *config.Config) {
			c.Parallel.Backend, c.Parallel.CPUThreads = "uni", 1
			c.Parallel.TensorParallelSize, c.Parallel.PipelineParallelSize = 2, 2
		},
	} {
		cfg := config.Default()
		cfg.Cache.MemoryBytes = 64 << 20
		set(&cfg)
		e, _, err := engine.Open(t.Context(), engine.Options{Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		s, err := api.New(api.Options{Info: e.Info(), Engine: e, Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Handler())
		got := choices(t, server.URL+"/v1/chat/completions", body)
		if again := choices(t, server.URL+"/v1/chat/completions",
			body); fmt.Sprint(again) != fmt.Sprint(got) {
			t.Errorf("layout %d: %+v, then %+v", i, got, again)
		}
		server.Close()
		s.Close()
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if i == 0 {
			first = got
		}
		if fmt.Sprint(got) != fmt.Sprint(first) {
			t.Errorf("layout %d: %+v, want %+v", i, got, first)
		}
	}
	if len(first) != 4 || first[0].Message.Content == "" ||
		first[0].Message.Content == first[1].Message.Content {
		t.Errorf("%+v", first)
	}
}

// TestBeamsRefused: too much work, and tools, are refused by name before the engine has them.
func TestBeamsRefused(t *testing.T) {
	url := serve(t, func(c *config.Config) { c.Model.ToolCallParser = "hermes" }).URL
	for _, c := range []struct{ path, body, want string }{
		{"/v1/completions", `{"prompt":["a","b"],"use_beam_search":true,"n":128,"max_tokens":300}`,
			"is more than 65536"},
		{"/v1/chat/completions",
			`{"messages":[{"role":"user","content":"a"}],"use_beam_search":true,"n":2,"max_tokens":5,` +
				`"tools":[{"type":"function","function":{"name":"f"}}]}`,
			"`tools` and `use_beam_search`"},
	} {
		r, err := http.Post(url+c.path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Error struct{ Message string } }
		err = json.NewDecoder(r.Body).Decode(&got)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusBadRequest ||
			!strings.Contains(got.Error.Message, c.want) {
			t.Errorf("%s: %d, %v: %q", c.body, r.StatusCode, err, got.Error.Message)
		}
	}
}
