package chattemplate

import (
	"github.com/eagleray/eagleray/internal/text/chattemplate/ast"
)

// Format says in which form a template wants a message's content.
type Format string

const (
	// FormatString is content as one text.
	FormatString Format = "string"
	// FormatOpenAI is content as a list of parts such as {"type": "text", "text": …}.
	FormatOpenAI Format = "openai"
)

// ContentFormat tells which form the template is written for. Like vLLM's _detect_content_format it
// looks for a loop over a message's content: FormatOpenAI if there is one. A message is what a loop
// over messages (or over a variable set from it) yields; its content is followed through variables
// it is set to, and a loop over a variable that is named content counts, because macros take it
// under that name.
func (t *Template) ContentFormat() Format {
	w := &formatWalker{messages: map[string]bool{"messages": true}, message: map[string]bool{},
		content: map[string]bool{"content": true}}
	// Each pass may learn names that let the next one learn more.
	w.learned = true
	for pass := 0; w.learned && pass < maxFormatPasses; pass++ {
		w.learned = false
		w.statements(t.parsed.Body)
	}
	if w.found {
		return FormatOpenAI
	}
	return FormatString
}

// maxFormatPasses bounds how often a template is walked; names are mostly set before they are used.
const maxFormatPasses = 16

// formatWalker collects the variables that hold the list of messages, a message, and a message's
// content.
type formatWalker struct {
	messages, message, content map[string]bool
	learned, found             bool
}

func (w *formatWalker) learn(names map[string]bool, t ast.Target) {
	if t.Name != "" && !names[t.Name] {
		names[t.Name] = true
		w.learned = true
	}
}

// variable strips filters, tests and slices off an expression and tells whether a variable of names
// is left.
func variable(x ast.Expr, names map[string]bool) bool {
	switch x := unwrapped(x).(type) {
	case *ast.Name:
		return names[x.Name]
	}
	return false
}

func unwrapped(x ast.Expr) ast.Expr {
	for {
		switch y := x.(type) {
		case *ast.Filter:
			x = y.X
		case *ast.Test:
			x = y.X
		case *ast.Slice:
			x = y.X
		default:
			return x
		}
	}
}

// isContent tells whether x is message.content, message['content'], or a variable that holds it.
func (w *formatWalker) isContent(x ast.Expr) bool {
	if variable(x, w.content) {
		return true
	}
	switch x := unwrapped(x).(type) {
	case *ast.Attr:
		return x.Name == "content" && w.isMessage(x.X)
	case *ast.Item:
		key, ok := x.Key.(*ast.Const)
		return ok && key.Value.IsString() && key.Value.Text == "content" && w.isMessage(x.X)
	}
	return false
}

// isMessage tells whether x is a loop's message or an element of messages.
func (w *formatWalker) isMessage(x ast.Expr) bool {
	if name, ok := x.(*ast.Name); ok {
		return w.message[name.Name]
	}
	item, ok := x.(*ast.Item)
	return ok && variable(item.X, w.messages)
}

func (w *formatWalker) assign(t ast.Target, x ast.Expr) {
	switch {
	case variable(x, w.messages):
		w.learn(w.messages, t)
	case variable(x, w.message) || w.isMessage(x):
		w.learn(w.message, t)
	case w.isContent(x):
		w.learn(w.content, t)
	}
}

func (w *formatWalker) statements(body []ast.Stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case *ast.If:
			for _, b := range s.Branches {
				w.statements(b.Body)
			}
			w.statements(s.Otherwise)
		case *ast.For:
			if variable(s.Iter, w.messages) {
				w.learn(w.message, s.Target)
			}
			w.found = w.found || w.isContent(s.Iter)
			w.statements(s.Body)
			w.statements(s.Otherwise)
		case *ast.Set:
			w.assign(s.Target, s.X)
		case *ast.SetBlock:
			w.statements(s.Body)
		case *ast.With:
			for i := range s.Targets {
				w.assign(s.Targets[i], s.Values[i])
			}
			w.statements(s.Body)
		case *ast.Macro:
			w.statements(s.Def.Body)
		case *ast.CallBlock:
			w.statements(s.Def.Body)
		case *ast.FilterBlock:
			w.statements(s.Body)
		case *ast.Generation:
			w.statements(s.Body)
		}
	}
}
