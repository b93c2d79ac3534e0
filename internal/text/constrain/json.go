package constrain

import (
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// jsonObject is any object of JSON. White space stands at the beginning of the lexeme after it, so
// that none is at the end of an answer.
func jsonObject(g *cfg.Grammar, compact bool) cfg.Sym {
	b := g.B
	space := b.Or(b.Rep(b.Lit(" "), 0, 2),
		b.Cat(b.Opt(b.Lit("\r")), b.Lit("\n"), b.Rep(b.Set(blank()), 0, 40)))
	if compact {
		space = regex.Eps
	}
	lexeme := func(x regex.Ex) cfg.Sym { return g.Lexeme(b.Cat(space, x)) }
	text := b.Cat(b.Lit(`"`), b.Star(b.JSONFreeRune()), b.Lit(`"`))
	digit := b.Bytes('0', '9')
	number := b.Cat(b.Opt(b.Lit("-")),
		b.Or(b.Lit("0"), b.Cat(b.Bytes('1', '9'), b.Rep(digit, 0, 63))),
		b.Opt(b.Cat(b.Lit("."), b.Rep(digit, 1, 64))),
		b.Opt(b.Cat(b.Or(b.Lit("e"), b.Lit("E")), b.Opt(b.Or(b.Lit("-"), b.Lit("+"))),
			b.Rep(digit, 1, 4))))
	value := g.Nonterminal("value")
	comma := lexeme(b.Lit(","))
	members := g.Rep(g.Seq(lexeme(text), lexeme(b.Lit(":")), value), comma, 0, cfg.Inf)
	items := g.Rep(value, comma, 0, cfg.Inf)
	g.Rule(value, lexeme(b.Or(b.Lits([]string{"true", "false", "null"}), number, text)))
	g.Rule(value, lexeme(b.Lit("{")), members, lexeme(b.Lit("}")))
	g.Rule(value, lexeme(b.Lit("[")), items, lexeme(b.Lit("]")))
	return g.Seq(g.Lit("{"), members, lexeme(b.Lit("}")))
}

// blank is a space and a tab.
func blank() (s regex.ByteSet) {
	s.Add(' ', ' ')
	s.Add('\t', '\t')
	return s
}
