package tag

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// triggered is free text with tags in it, each of which begins at a trigger.
func (c *compiler) triggered(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	if len(f.Triggers) == 0 || len(f.Tags) == 0 {
		return cfg.None, invalid(at, "triggered_tags have triggers and tags")
	}
	for i, t := range f.Triggers {
		if err := c.look(len(f.Triggers)); err != nil {
			return cfg.None, err
		}
		for j, other := range f.Triggers {
			if t == "" || i != j && strings.HasPrefix(other, t) {
				return cfg.None, invalid(fmt.Sprintf("%s/triggers/%d", at, i),
					"the trigger %q is empty, or the beginning of another one", t)
			}
		}
	}
	free, after := c.looping(f, end)
	rests := make([][]cfg.Sym, len(f.Triggers))
	var whole []cfg.Sym
	for i, raw := range f.Tags {
		here := fmt.Sprintf("%s/tags/%d", at, i)
		t, err := c.readTag(raw, here, depth)
		if err != nil {
			return cfg.None, err
		}
		begin, _ := asText(t.Begin)
		trigger := -1
		if err := c.look(len(f.Triggers)); err != nil {
			return cfg.None, err
		}
		for j, s := range f.Triggers {
			if strings.HasPrefix(begin, s) {
				trigger = j
			}
		}
		if trigger < 0 {
			return cfg.None, invalid(here+"/begin", "%q begins with none of the triggers", begin)
		}
		body, err := c.inside(t, nil, here, depth+1)
		if err != nil {
			return cfg.None, err
		}
		rests[trigger] = append(rests[trigger],
			c.g.Seq(c.text(begin[len(f.Triggers[trigger]):]), body))
		if f.AtLeastOne {
			whole = append(whole, c.g.Seq(c.text(begin), body))
		}
	}
	r := region{end: end, excludes: f.Excludes}
	for i, trigger := range f.Triggers {
		dispatch := c.g.Alt(rests[i]...)
		r.marks = append(r.marks, c.marks(trigger, func(rest cfg.Sym) cfg.Sym {
			return c.g.Seq(rest, dispatch, after)
		})...)
	}
	c.fill(free, r)
	if f.AtLeastOne {
		return c.g.Seq(c.g.Alt(whole...), after), nil
	}
	return free, nil
}

// looping is the nonterminal of free text, without rules, and what follows a tag in it: more of
// it, or its end.
func (c *compiler) looping(f *format, end *ending) (free, after cfg.Sym) {
	free = c.g.Nonterminal("text")
	after = free
	if f.StopAfterFirst {
		after = c.ended(end)
	}
	return free, after
}

// tokenTriggered is triggered with special tokens as triggers.
func (c *compiler) tokenTriggered(f *format, end *ending, at string, depth int) (cfg.Sym, error) {
	triggers, err := c.tokens(f.TriggerTokens, at+"/trigger_tokens")
	if err != nil {
		return cfg.None, err
	}
	without, err := c.tokens(f.ExcludeTokens, at+"/exclude_tokens")
	if err != nil {
		return cfg.None, err
	}
	free, after := c.looping(f, end)
	r := region{end: end, withoutTokens: without}
	var whole []cfg.Sym
	found := map[int32][]cfg.Sym{}
	for i, raw := range f.Tags {
		here := fmt.Sprintf("%s/tags/%d", at, i)
		t, err := c.readTag(raw, here, depth)
		if err != nil {
			return cfg.None, err
		}
		ids, err := c.beginToken(t.Begin, here+"/begin")
		if err != nil {
			return cfg.None, err
		}
		body, err := c.inside(t, nil, here, depth+1)
		if err != nil {
			return cfg.None, err
		}
		found[ids[0]] = append(found[ids[0]], body)
		whole = append(whole, c.g.Seq(c.g.Tokens(ids...), body))
	}
	for _, id := range triggers {
		if len(found[id]) == 0 {
			return cfg.None, invalid(at+"/trigger_tokens", "no tag begins with token %d", id)
		}
		r.marks = append(r.marks, mark{id: id, then: c.g.Seq(c.g.Alt(found[id]...), after)})
	}
	c.fill(free, r)
	if f.AtLeastOne {
		return c.g.Seq(c.g.Alt(whole...), after), nil
	}
	return free, nil
}

// beginToken is the special token that a tag begins with.
func (c *compiler) beginToken(raw json.RawMessage, at string) ([]int32, error) {
	if _, ok := asText(raw); ok {
		return c.tokens([]json.RawMessage{raw}, at)
	}
	return c.tokenFormat(raw, at)
}
