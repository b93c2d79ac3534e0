package tokenizer

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/text/unicode/norm"
)

// threadTime is the processor time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// TestEncodeUntil: a text of megabytes, of any kind, is left soon, in processor time, whenever that
// is asked for: one of 30 MB mostly within a tenth of a second, as long as a copy of it takes. The
// tokenizer is as good as before.
func TestEncodeUntil(t *testing.T) {
	size, most := 30<<20, 2*time.Second
	if testing.Short() {
		size, most = 1<<18, 60*time.Millisecond
	}
	most *= detector
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	with := func(steps ...object) *Tokenizer {
		file := llamaStyle()
		file["normalizer"] = sequence("normalizers", steps...)
		return mustParse(t, file)
	}
	simple := func(kind string) object { return object{"type": kind} }
	tiny := loadTiny(t)
	regex := withRegex(t, tiny, patternQwen2)
	llama := mustParse(t, llamaStyle())
	for _, c := range []struct {
		name string
		tok  *Tokenizer
		text string
	}{
		{"words", tiny, fill("func main returns an error ")},
		{"one word", tiny, fill("a")},
		{"one word of many letters", tiny, fill("thequickbrownfox")},
		{"digits", tiny, fill("7")},
		{"spaces", tiny, fill(" ")},
		{"special tokens", tiny, fill("<|im_end|>")},
		{"not UTF-8", tiny, fill("\xff\xfe a")},
		{"word marks", llama, fill("the heat ")},
		{"one SentencePiece word", llama, fill("theheat")},
		{"bytes", llama, fill("é")},
		{"spaces replaced", llama, fill(" ")},
		{"regular expression", regex, fill("what does it do? ")},
		{"composed", with(simple("NFC")), fill("e\u0301 à la carte ")},
		{"decomposed", with(simple("NFKD"), simple("StripAccents"), simple("Lowercase")),
			fill("한Éﬁ ")},
		{"combining marks", with(simple("NFC")), fill("\u0301\u0323")},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var longest time.Duration
			asked, last := 0, threadTime(t)
			measure := func() {
				now := threadTime(t)
				longest, last = max(longest, now-last), now
			}
			ids, err := c.tok.EncodeUntil(func() error { asked++; measure(); return nil }, c.text,
				true)
			measure()
			if err != nil || len(ids) == 0 || asked < size/workPart/8 {
				t.Errorf("%d ids, error %v, asked %d times", len(ids), err, asked)
			}
			if longest > most {
				t.Errorf("%v between two questions, at most %v", longest, most)
			}
			gone, left := errors.New("gone"), 1+rand.IntN(asked)
			_, err = c.tok.EncodeUntil(func() error {
				if left--; left > 0 {
					return nil
				}
				return gone
			}, c.text, true)
			if err != gone || left != 0 {
				t.Errorf("error %v, %d questions left", err, left)
			}
			if part := c.text[:1<<10]; tokens(c.tok, part) == "" {
				t.Error("no tokens afterwards")
			}
		})
	}
}

// TestNormalizeInParts: a long text, normalized part by part, is what it is as a whole.
func TestNormalizeInParts(t *testing.T) {
	chars := []rune("aeEsÅé\u0301\u0323\u0345ﬁ한ᄒ\u1161\u11abק\u05b7か\u3099ゔ\u212b \u0897\U000105c9")
	rng := rand.New(rand.NewPCG(15, 16))
	rounds := 40
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		text := make([]rune, workPart/2+rng.IntN(2*workPart))
		for i := range text {
			text[i] = chars[rng.IntN(len(chars))]
		}
		s := string(text)
		if rng.IntN(4) == 0 {
			s += strings.Repeat("\u0301", workPart)
		}
		for _, form := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
			decompose := norm.NFD
			if form == norm.NFKC || form == norm.NFKD {
				decompose = norm.NFKD
			}
			got := canonical(form, decompose)(s, new(work))
			if want := normalizeText(s, form, decompose, new(work)); got != want {
				t.Fatalf("form %d of %d characters: %d bytes, want %d", form, len(text), len(got),
					len(want))
			}
		}
	}
	for _, f := range []func(string) string{lowercase, stripAccents, toByteAlphabet} {
		s := strings.Repeat("Éİ a\u0301", workPart)
		if got := eachChar(f)(s, new(work)); got != f(s) {
			t.Error("a text in parts differs from the whole")
		}
	}
}
