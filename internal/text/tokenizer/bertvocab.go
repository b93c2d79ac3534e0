package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// bertClasses read vocab.txt as BERT does. Others that have such a file divide text in another way.
var bertClasses = []string{"", "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
	"MobileBertTokenizer", "PreTrainedTokenizer", "TokenizersBackend"}

// parseVocabText reads BERT's vocab.txt, one token a line, where ids are the numbers of lines.
func parseVocabText(_ string, data []byte, c *Config) (p parts, err error) {
	if class := c.class(); !slices.Contains(bertClasses, class) {
		return p, fmt.Errorf("tokenizer_class %q is not supported without tokenizer.json", class)
	}
	if p.vocab, err = readVocabText(data); err != nil {
		return p, err
	}
	for name, text := range map[string]string{"unk_token": "[UNK]", "sep_token": "[SEP]",
		"pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"} {
		c.setDefault(p.vocab, name, text)
	}
	if p.model, err = newWordPiece(p.vocab, modelSpec{UnkToken: &c.UnkToken}); err != nil {
		return p, err
	}
	var rules bertNormalizer
	for name, flag := range map[string]**bool{"tokenize_chinese_chars": &rules.Chinese,
		"strip_accents": &rules.StripAccents, "do_lower_case": &rules.Lowercase} {
		if *flag, err = c.flagOrNull(name); err != nil {
			return p, err
		}
	}
	p.normalizers = []normalizer{rules.compile()}
	p.steps = []preTokenizer{bertWords{}}
	p.decoder = []decoderStep{{kind: "WordPiece", words: &wordPieceStep{Prefix: "##"}}}
	cls, err := p.vocab.find(c.SpecialTokens["cls_token"])
	if err != nil {
		return p, fmt.Errorf("cls_token: %w", err)
	}
	sep, err := p.vocab.find(c.SpecialTokens["sep_token"])
	if err != nil {
		return p, fmt.Errorf("sep_token: %w", err)
	}
	p.template = &templates{single: []int32{cls, markA, sep},
		pair: []int32{cls, markA, sep, markB, sep}}
	p.added, err = c.extend(p.vocab, nil)
	return p, err
}

// readVocabText reads the lines as Python does, which also ends them at \r and \r\n.
func readVocabText(data []byte) (*vocabulary, error) {
	text := string(data)
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the text is not UTF-8")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	var (
		block strings.Builder
		ends  []uint32
		ids   []int32
	)
	for line := range strings.Lines(text) {
		if len(ids) == maxVocabulary {
			return nil, fmt.Errorf("more than %d tokens", maxVocabulary)
		}
		block.WriteString(strings.TrimSuffix(line, "\n"))
		ends = append(ends, uint32(block.Len()))
		ids = append(ids, int32(len(ids)))
	}
	return newVocabulary(block.String(), ends, ids)
}
