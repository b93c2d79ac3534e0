package tokenizer

import (
	"fmt"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The kinds of a piece (sentencepiece_model.proto).
const (
	pieceNormal      = 1
	pieceUnknown     = 2
	pieceControl     = 3 // never in a text: <s>, </s>
	pieceUserDefined = 4 // whole wherever it is in a text
	pieceUnused      = 5
	pieceByte        = 6 // <0x0A>
)

// sentencePiece is one piece of a model, whose id is its place.
type sentencePiece struct {
	text  string
	score float32
	kind  uint64
}

// sentencePieceFile is a model of SentencePiece, with what of its trainer_spec and normalizer_spec
// decides how a text divides.
type sentencePieceFile struct {
	pieces       []sentencePiece
	unigram      bool
	byteFallback bool
	unknown      int
	bos, eos     string
	charsmap     []byte
	dummyPrefix  bool // a space goes in front of a text
	trimSpaces   bool // spaces at the ends go, and those in a row are one
	// ends is set for a class of transformers that treats words and the ends of a text in its way.
	ends func(v *vocabulary) (*templates, error)
}

// readSentencePiece reads the protocol buffer of sentencepiece_model.proto. What would change the
// result and is not known here is refused: other models than BPE and Unigram, and white space that
// ends a word or stays a space.
func readSentencePiece(data []byte) (*sentencePieceFile, error) {
	f := &sentencePieceFile{unigram: true, bos: "<s>", eos: "</s>", dummyPrefix: true,
		trimSpaces: true}
	spec := sentenceSpec{modelType: 1, escapes: true}
	err := eachField(data, func(number protowire.Number, _ uint64, message []byte) error {
		switch number {
		case 1:
			return f.readPiece(message)
		case 2:
			return eachField(message, spec.trainer(f))
		case 3:
			return eachField(message, spec.normalizer(f))
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case spec.modelType != 1 && spec.modelType != 2:
		return nil, fmt.Errorf("model_type %d of SentencePiece is not supported", spec.modelType)
	case spec.suffix || !spec.escapes:
		return nil, fmt.Errorf("treat_whitespace_as_suffix %v with escape_whitespaces %v is not "+
			"supported", spec.suffix, spec.escapes)
	case f.unknown < 0 || f.unknown >= len(f.pieces):
		return nil, fmt.Errorf("unk_id %d is not one of %d pieces", f.unknown, len(f.pieces))
	}
	f.unigram = spec.modelType == 1
	return f, nil
}

// sentenceSpec is what of a model's specs only decides whether it is read.
type sentenceSpec struct {
	modelType uint64
	escapes   bool // spaces become word marks
	suffix    bool // which end a word
}

// trainer reads trainer_spec, normalizer normalizer_spec; fields are named by their numbers there.
func (s *sentenceSpec) trainer(f *sentencePieceFile) fieldReader {
	return func(number protowire.Number, value uint64, text []byte) error {
		switch number {
		case 3:
			s.modelType = value
		case 24:
			s.suffix = value != 0
		case 35:
			f.byteFallback = value != 0
		case 40:
			f.unknown = int(int32(value))
		case 46:
			f.bos = string(text)
		case 47:
			f.eos = string(text)
		}
		return nil
	}
}

func (s *sentenceSpec) normalizer(f *sentencePieceFile) fieldReader {
	return func(number protowire.Number, value uint64, text []byte) error {
		switch number {
		case 2:
			f.charsmap = text
		case 3:
			f.dummyPrefix = value != 0
		case 4:
			f.trimSpaces = value != 0
		case 5:
			s.escapes = value != 0
		}
		return nil
	}
}

func (f *sentencePieceFile) readPiece(message []byte) error {
	p := sentencePiece{kind: pieceNormal}
	err := eachField(message, func(number protowire.Number, value uint64, text []byte) error {
		switch number {
		case 1:
			p.text = string(text)
		case 2:
			p.score = math.Float32frombits(uint32(value))
		case 3:
			p.kind = value
		}
		return nil
	})
	id := len(f.pieces)
	switch {
	case err != nil:
		return fmt.Errorf("piece %d: %w", id, err)
	case id == maxVocabulary:
		return fmt.Errorf("more than %d pieces", maxVocabulary)
	case p.text == "" || !utf8.ValidString(p.text):
		return fmt.Errorf("piece %d is empty or not UTF-8: %.50q", id, p.text)
	case len(p.text) > maxPiece:
		return fmt.Errorf("piece %d has %d bytes, more than %d", id, len(p.text), maxPiece)
	case p.kind < pieceNormal || p.kind > pieceByte:
		return fmt.Errorf("piece %d has the unknown type %d", id, p.kind)
	case p.score != p.score:
		return fmt.Errorf("piece %d has a score that is no number", id)
	}
	f.pieces = append(f.pieces, p)
	return nil
}

// fieldReader reads a field of a message: value for a number, text for a string or message, which
// is a part of the message.
type fieldReader func(number protowire.Number, value uint64, text []byte) error

// eachField calls field for every field of a message.
func eachField(message []byte, field fieldReader) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("protocol buffer: %w", protowire.ParseError(n))
		}
		message = message[n:]
		var value uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(message)
			value = uint64(v)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return fmt.Errorf("protocol buffer: field %d: %w", number, protowire.ParseError(n))
		}
		if err := field(number, value, text); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}
