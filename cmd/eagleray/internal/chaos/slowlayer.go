package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// share is the part of a processor that is left to a rank whose layers are to be slow: one of
	// so many, of twice as many while they are not.
	share = 8
	// ran is the least that it has of a processor between two stops: it moves then. A kernel counts
	// this by its ticks.
	ran = time.Millisecond
	// longest is how long it is stopped at once at most: far less than what the server calls a
	// stall.
	longest = stall / 3
	// longPrompt is how many tokens a prompt has whose layers are to be slow, where the server
	// takes so many.
	longPrompt = 2000
)

// slowLayer leaves a rank a part of a processor, until a layer of a long prompt has taken it longer
// than what the server calls a stall. It moves all the while: the health route must not tell of
// anything.
func slowLayer(v *victim) error {
	v.asked.rest.Lock()
	defer v.asked.rest.Unlock()
	prompt, err := v.longPrompt()
	if err != nil {
		return err
	}
	// A salt keeps the second request from what the cache has of the first.
	ask := func(ctx context.Context, salt string) (*answer, error) {
		return v.l.ask(ctx, v.s.now(), map[string]any{"prompt": prompt, "max_tokens": 4,
			"ignore_eos": true,
			"stream":     true, "temperature": 0, "logprobs": 1, "return_token_ids": true,
			"cache_salt": fmt.Sprintf("%s-%d", salt, v.rng.Uint64())}, func(int) {})
	}
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	want, err := ask(ctx, "undisturbed")
	if err != nil {
		return fmt.Errorf("a long prompt: %w", err)
	}
	v.l.now()
	for share := share; ctx.Err() == nil; share *= 2 {
		answered := make(chan struct{})
		var got *answer
		var failed error
		go func() {
			defer close(answered)
			got, failed = ask(ctx, "slow")
		}()
		seen, err := v.starve(ctx, time.Duration(share), answered)
		<-answered
		v.l.compare(fmt.Sprintf("a prompt of %d tokens", len(prompt)), want, got, failed)
		if seen || err != nil {
			return err
		}
	}
	return fmt.Errorf("no layer ever took longer than %v", stall)
}

// longPrompt is one of tokens at random, as long as the server takes them.
func (v *victim) longPrompt() ([]int, error) {
	status, body := v.s.get(v.ctx, "/v1/models")
	var models struct {
		Data []struct {
			Longest int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal(body, &models); err != nil || status != http.StatusOK ||
		len(models.Data) == 0 {
		return nil, fmt.Errorf("/v1/models answers %d: %s", status, body)
	}
	prompt := make([]int, max(min(longPrompt, models.Data[0].Longest-8), 1))
	for i := range prompt {
		prompt[i] = 5 + v.rng.IntN(500)
	}
	return prompt, nil
}

// starve leaves a rank one part of so many of a processor until done is closed. It says whether a
// layer has been slow.
func (v *victim) starve(
	ctx context.Context, share time.Duration, done <-chan struct{},
) (seen bool, err error) {
	pid, err := v.one()
	if err != nil {
		return false, err
	}
	var in layer
	var since time.Time // the rank is in that layer
	var late time.Time  // it was stopped for too long
	for {
		// It has something of a processor before it is stopped again, however busy the machine is.
		before, limit := ranFor(pid), time.Now().Add(longest)
		for ranFor(pid)-before < ran && time.Now().Before(limit) {
			time.Sleep(ran / 4)
		}
		had := ranFor(pid) - before
		select {
		case <-done:
			return seen, nil
		case <-ctx.Done():
			return seen, nil
		default:
		}
		if had < ran {
			in = layer{} // it has nothing to do, or no processor: it is not stopped
			continue
		}
		stopped := time.Now()
		if err := send(pid, syscall.SIGSTOP); err != nil {
			return seen, err
		}
		now, code, reason, err := v.look(ctx, pid)
		time.Sleep(min((share-1)*had, longest) - time.Since(stopped))
		if err2 := send(pid, syscall.SIGCONT); err == nil {
			err = err2
		}
		if err != nil {
			return seen, err
		}
		if time.Since(stopped) > stall/2 {
			late = time.Now() // this machine had no time for us: that is a stall
		}
		switch {
		case now == layer{} || now != in || time.Since(late) < 2*stall:
			in, since = now, stopped
		case time.Since(since) > stall:
			seen = true
		}
		if code != http.StatusOK && time.Since(late) > 2*stall {
			v.asked.disagree("health %d although a rank moves: %s", code, reason)
		}
		v.asked.looked(code)
	}
}

// layer is one of a step.
type layer struct {
	step   uint64
	number int
}

// look is where a rank is, the zero layer when it is in none, and what the health route says.
func (v *victim) look(ctx context.Context, pid int) (at layer, code int, reason []byte, err error) {
	ranks, err := v.s.ranks(ctx)
	if err != nil {
		return at, 0, nil, err
	}
	for _, r := range ranks {
		if _, number, ok := strings.Cut(r.Phase, "layer "); ok && r.PID == pid {
			at.step = r.Started
			at.number, _ = strconv.Atoi(number)
		}
	}
	code, reason = v.s.get(ctx, "/health")
	return at, code, reason, nil
}

// ranFor is how long the threads of a process have run, as schedstat of proc(5) has it.
func ranFor(pid int) (sum time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range threads {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		first, _, _ := strings.Cut(string(raw), " ")
		ns, _ := strconv.ParseInt(first, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}
