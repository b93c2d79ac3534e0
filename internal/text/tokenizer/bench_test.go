package tokenizer

import (
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// tinyModel is the folder of the repository's own small model.
func tinyModel() string {
	return filepath.Join("..", "..", "..", "testdata", "models", "go-std-tiny")
}

func loadTiny(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load(tinyModel())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// prose returns English text of a few hundred KB in chunks of the size of a prompt: the
// documentation files and the doc comments of the Go distribution.
func prose(b testing.TB) []string {
	b.Helper()
	var text strings.Builder
	root := build.Default.GOROOT
	for _, dir := range []string{"net/http", "go/types", "crypto/tls", "text/template",
		"encoding/json", "runtime"} {
		files, _ := filepath.Glob(filepath.Join(root, "src", dir, "*.go"))
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil || !utf8.Valid(data) {
				continue
			}
			for line := range strings.Lines(string(data)) {
				if comment, ok := strings.CutPrefix(line, "// "); ok {
					text.WriteString(comment)
				}
			}
		}
	}
	all := text.String()
	if len(all) < 100_000 {
		b.Skip("the Go distribution's sources are not installed")
	}
	var chunks []string
	for len(all) > 4096 {
		cut := strings.LastIndexByte(all[:4096], '\n') + 1
		chunks = append(chunks, all[:cut])
		all = all[cut:]
	}
	return chunks
}

// withRegex returns a copy of a tokenizer that splits with the general regular-expression engine.
func withRegex(b testing.TB, tok *Tokenizer, expr string) *Tokenizer {
	b.Helper()
	p, err := newRegexPattern(expr)
	if err != nil {
		b.Fatal(err)
	}
	slow := &Tokenizer{
		vocab: tok.vocab, special: tok.special, added: tok.added, addedNormal: tok.addedNormal,
		normalizers: tok.normalizers, model: tok.model, template: tok.template,
		decoder: tok.decoder,
		steps:   []preTokenizer{&splitter{pattern: p}, &byteLevel{}},
	}
	slow.scratch.New = func() any { return new(scratch) }
	return slow
}

func BenchmarkEncodeProse(b *testing.B) {
	chunks := prose(b)
	size := 0
	for _, c := range chunks {
		size += len(c)
	}
	for _, name := range publishedNames {
		tok, _ := loadPublished(b, name)
		expr := map[string]string{"gpt2": patternGPT2, "qwen3": patternQwen2}[name]
		for _, v := range []struct {
			name string
			tok  *Tokenizer
		}{{"scanner", tok}, {"regexp2", withRegex(b, tok, expr)}} {
			b.Run(name+"/"+v.name, func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				var ids []int32
				for b.Loop() {
					for _, c := range chunks {
						ids = v.tok.AppendEncode(ids[:0], c, false)
					}
				}
			})
		}
		b.Run(name+"/cold", func(b *testing.B) {
			b.SetBytes(int64(size))
			var ids []int32
			for b.Loop() {
				b.StopTimer()
				tok.model.(*bpe).cache = newPieceCache(tok.VocabSize())
				b.StartTimer()
				for _, c := range chunks {
					ids = tok.AppendEncode(ids[:0], c, false)
				}
			}
		})
	}
}

func BenchmarkEncodeOneLetter(b *testing.B) {
	tok := loadTiny(b)
	text := strings.Repeat("a", 1<<20)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text, false)
	}
}

func BenchmarkLoad(b *testing.B) {
	b.Run("go-std-tiny", func(b *testing.B) {
		for b.Loop() {
			loadTiny(b)
		}
	})
	for _, name := range publishedNames {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				loadPublishedOnly(b, name)
			}
		})
	}
}

func BenchmarkStreamPush(b *testing.B) {
	tok := loadTiny(b)
	ids := tok.Encode(strings.Join(prose(b)[:4], ""), false)
	s := tok.NewStream(nil, true)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Push(ids[i%len(ids)])
		i++
	}
}
