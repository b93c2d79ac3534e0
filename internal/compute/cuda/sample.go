package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// Limits of what is sampled on the device: how many of the most likely tokens are described, and
// how large a vocabulary may be (see UNIT in choose.cu).
const (
	mostLikely = 20
	mostVocab  = 1 << 20
)

// How kernels read rows (logits.cuh): in pieces, of which a block has as many as it has warps, or
// twice as many; then a row by a block with a thread for each logit of a piece.
const (
	pieceLogits = 512
	pieceBlock  = 256
	editBlock   = 1024
)

// sampling is what tokens are chosen in. A step's rows are sent in one piece, and what became of
// them comes back in one.
type sampling struct {
	ring   ring
	recipe sample.Recipe
	rows   []kernels.RowParams // those that choose, then those that describe
	// chosen are the numbers of the rows that choose, described has those that describe.
	chosen    []int
	described []described
	words     []int32 // edits and masks; addresses in rows are their numbers until sent
	copied    []int32 // rows of logits that are needed as they were before edits

	most, weights, kept, unedited, answers scratch
	answer                                 []byte // pinned
}

// described is a row that describes a token: its number, and that of the copy that it reads instead
// of logits that are edited, or notCopied.
type described struct{ row, copy int }

const notCopied = -1

// Samples says whether Sample does what is asked of a row with so many logits. What it does not do
// is to describe tokens by name, more than 20 of the most likely ones, or the logits that a token
// was drawn by.
func (d *Device) Samples(r *sample.Row, vocab int) bool {
	if vocab < 1 || vocab > mostVocab {
		return false
	}
	if r.Logprobs == sample.NoLogprobs {
		return true
	}
	if r.Given < 0 && (r.Params.Processed || len(r.Params.LogprobTokens) > 0) {
		return false
	}
	return r.Logprobs >= 0 && r.Logprobs <= mostLikely
}

// Sample sets the results of rows for which Samples is true, of logits that it may change. It waits
// for the device; its error is the device's first.
func (d *Device) Sample(logits *compute.Tensor, rows []sample.Row) error {
	if len(rows) == 0 {
		return d.err
	}
	s := &d.sampling
	p := kernels.SampleParams{Vocab: int32(logits.Width),
		Pieces: int32((logits.Width + pieceLogits - 1) / pieceLogits)}
	s.plan(d, logits, rows, &p)
	s.place(d, logits, &p)
	s.launch(d, logits, &p)
	s.download(d, &p)
	if err := d.Err(); err != nil {
		return err
	}
	s.read(rows, &p)
	return nil
}

// plan makes the rows that kernels read. Addresses of words are their numbers, from 1 on.
func (s *sampling) plan(d *Device, logits *compute.Tensor, rows []sample.Row,
	p *kernels.SampleParams) {
	s.rows, s.words, s.copied = s.rows[:0], s.words[:0], s.copied[:0]
	s.chosen, s.described = s.chosen[:0], s.described[:0]
	values := at(logits.Memory)
	for i := range rows {
		r := &rows[i]
		if r.Given >= 0 {
			continue
		}
		s.recipe.Set(r.Params, r.State, logits.Width, r.Position)
		s.chosen = append(s.chosen, i)
		s.rows = append(s.rows, s.choosing(r, logits.Width))
		s.rows[len(s.rows)-1].X = values + driver.Ptr(4*r.Index*logits.Width)
	}
	p.Choosing = int32(len(s.rows))
	choosing := 0
	for i := range rows {
		r, one := &rows[i], described{i, notCopied}
		y := kernels.RowParams{X: values + driver.Ptr(4*r.Index*logits.Width), Token: r.Given,
			Top: r.Logprobs, Scale: float32(sample.StepsPerLogit / 64), Weighed: 1}
		if r.Given < 0 {
			y.Chosen = int32(choosing)
			choosing++
		}
		if r.Logprobs == sample.NoLogprobs {
			continue
		}
		if r.Given < 0 && s.rows[y.Chosen].Checked == 0 {
			one.copy = len(s.copied)
			s.copied = append(s.copied, int32(r.Index))
		}
		s.described = append(s.described, one)
		s.rows = append(s.rows, y)
		p.Widest = max(p.Widest, r.Logprobs)
	}
}

// choosing is the row of a recipe, whose edits and mask it adds to the words.
func (s *sampling) choosing(r *sample.Row, vocab int) kernels.RowParams {
	c := &s.recipe
	y := kernels.RowParams{Masked: int32(len(c.Masked)), Biases: int32(len(c.Bias)), Token: -1,
		Repetition: c.Repetition, Frequency: c.Frequency, Presence: c.Presence, Resort: c.Resort,
		TopK: c.TopK, Steps: math.Float64bits(c.Steps), Scale: float32(c.Steps / 64),
		MinP: math.Float64bits(c.MinP), TopP: math.Float64bits(c.TopP),
		Number: math.Float64bits(c.Number), Weighed: 1, Checked: 1}
	if c.Greedy {
		y.Greedy, y.Weighed = 1, 0
	}
	if c.Filters() {
		y.Kept = 1
	}
	if c.Edits() {
		y.Checked = 0
		y.Edits = driver.Ptr(len(s.words) + 1)
		y.Seen = s.addEdits(vocab)
	}
	if r.Mask != nil || len(c.Only) > 0 {
		y.Mask = driver.Ptr(len(s.words) + 1)
		y.Words = int32((vocab + 31) / 32)
		s.addMask(r.Mask, int(y.Words))
	}
	return y
}

// addEdits adds the recipe's edits, and says of how many seen tokens there are any.
func (s *sampling) addEdits(vocab int) (seen int32) {
	c := &s.recipe
	s.words = append(s.words, c.Masked...)
	for _, b := range c.Bias {
		s.words = append(s.words, b.ID, int32(math.Float32bits(b.Value)))
	}
	for i, id := range c.Seen {
		if id >= 0 && int(id) < vocab {
			s.words = append(s.words, id, c.Counts[i])
			seen++
		}
	}
	return seen
}

// addMask adds the bits of the tokens that both a constraint and the recipe leave.
func (s *sampling) addMask(mask []uint32, words int) {
	from := len(s.words)
	if only := s.recipe.Only; len(only) > 0 {
		for range words {
			s.words = append(s.words, 0)
		}
		for _, id := range only {
			if id >= 0 && int(id) < 32*words && (mask == nil || sample.Allows(mask, id)) {
				s.words[from+int(id>>5)] |= 1 << (id & 31)
			}
		}
		return
	}
	have := mask[:min(words, len(mask))]
	s.words = append(s.words, unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(have))),
		len(have))...)
	for range words - len(have) {
		s.words = append(s.words, 0)
	}
}

// Sizes of what kernels read and write, in bytes.
const (
	rowBytes    = int(unsafe.Sizeof(kernels.RowParams{}))
	resultBytes = int(unsafe.Sizeof(kernels.ResultParams{}))
	likelyBytes = 8 // an id and a logit
)

// place makes room for all that is computed, sends the rows, and says where everything is.
func (s *sampling) place(d *Device, logits *compute.Tensor, p *kernels.SampleParams) {
	rows, pieces, vocab := len(s.rows), int(p.Pieces), logits.Width
	p.Most = s.most.grow(d, 8*rows*pieces)
	p.Weights = s.weights.grow(d, 4*rows*pieces)
	p.Results = s.answers.grow(d, s.answerBytes(p))
	p.Likely = p.Results + driver.Ptr(resultBytes*rows)
	for i := range s.rows {
		if s.rows[i].Kept != 0 {
			s.rows[i].Kept = s.kept.grow(d, 4*int(p.Choosing)*vocab) + driver.Ptr(4*i*vocab)
		}
	}
	var unedited driver.Ptr
	if len(s.copied) > 0 {
		unedited = s.unedited.grow(d, 4*len(s.copied)*vocab)
	}
	for i, one := range s.described {
		if one.copy != notCopied {
			s.rows[int(p.Choosing)+i].X = unedited + driver.Ptr(4*one.copy*vocab)
		}
	}
	copied := s.send(d, p)
	if len(s.copied) > 0 {
		d.copyRows(unedited, vocab, logits.All(), len(s.copied), copied)
	}
}

// send sends the rows and what they refer to, and returns where the numbers of copied rows are. The
// device is done with what was sent before: what came of it has been waited for.
func (s *sampling) send(d *Device, p *kernels.SampleParams) (copied driver.Ptr) {
	powers := sample.Powers()
	n := [3]int{rowBytes / 4 * len(s.rows), 2 * len(powers), len(s.words)}
	s.ring.d, s.ring.used = d, 0
	to, there := s.ring.room(n[0] + n[1] + n[2] + len(s.copied))
	p.Rows = there
	p.Powers = p.Rows + driver.Ptr(4*n[0])
	words := p.Powers + driver.Ptr(4*n[1])
	for i := range s.rows {
		y := &s.rows[i]
		for _, address := range [...]*driver.Ptr{&y.Edits, &y.Mask} {
			if *address != 0 {
				*address = words + 4*(*address-1)
			}
		}
	}
	copy(to, unsafe.Slice((*int32)(unsafe.Pointer(&s.rows[0])), n[0]))
	copy(to[n[0]:], unsafe.Slice((*int32)(unsafe.Pointer(&powers[0])), n[1]))
	copy(to[n[0]+n[1]:], s.words)
	copy(to[n[0]+n[1]+n[2]:], s.copied)
	s.ring.send(to, there)
	return words + driver.Ptr(4*n[2])
}

func (s *sampling) launch(d *Device, logits *compute.Tensor, p *kernels.SampleParams) {
	rows, pieces := uint32(len(s.rows)), uint32(p.Pieces)
	choosing := uint32(p.Choosing)
	edited, weighed := false, false
	for i := range s.rows {
		edited = edited || i < int(choosing) && s.rows[i].Checked == 0
		weighed = weighed || s.rows[i].Weighed != 0
	}
	one := func(n uint32) [3]uint32 { return [3]uint32{n, 1, 1} }
	if edited {
		launch(d, kernels.Edit, one(choosing), one(editBlock), 0, *p)
	}
	launch(d, kernels.Survey, [3]uint32{(pieces + 7) / 8, rows, 1}, one(pieceBlock), 0, *p)
	if weighed {
		launch(d, kernels.Weigh, [3]uint32{(pieces + 15) / 16, rows, 1}, one(pieceBlock), 0, *p)
	}
	launch(d, kernels.Choose, one(choosing), one(pieceLogits), 0, *p)
	launch(d, kernels.Describe, one(rows-choosing), one(pieceLogits), 0, *p)
	of(logits.Memory).written()
}

// answerBytes is what comes back.
func (s *sampling) answerBytes(p *kernels.SampleParams) int {
	return resultBytes*len(s.rows) + likelyBytes*len(s.described)*int(p.Widest)
}

// download waits for what became of the rows.
func (s *sampling) download(d *Device, p *kernels.SampleParams) {
	n := s.answerBytes(p)
	if d.err == nil && n > len(s.answer) {
		if s.answer != nil {
			d.check(d.ctx.Unpin(s.answer))
		}
		var err error
		if s.answer, err = d.ctx.Pin(n + n/4); err != nil {
			s.answer = nil
			d.check(fmt.Errorf("%d bytes of pinned memory for tokens: %w", n+n/4, err))
		}
	}
	if d.err == nil {
		d.check(d.ctx.Download(s.answer[:n], p.Results, d.stream))
	}
	d.wait()
}

// read sets the rows' results.
func (s *sampling) read(rows []sample.Row, p *kernels.SampleParams) {
	results := unsafe.Slice((*kernels.ResultParams)(unsafe.Pointer(&s.answer[0])), len(s.rows))
	for n, i := range s.chosen {
		rows[i].Token = results[n].Token
		if rows[i].Token < 0 {
			rows[i].Token = sample.Unsound
		}
	}
	likely := s.answer[resultBytes*len(s.rows):]
	for n, one := range s.described {
		row, y := &rows[one.row], &results[len(s.chosen)+n]
		if row.Given >= 0 {
			row.Token = row.Given
		}
		if row.Token == sample.Unsound {
			continue
		}
		var norm sample.Normaliser
		if !row.Params.AsLogits {
			norm = sample.NewNormaliser(y.Greatest, math.Float64frombits(y.Sum))
		}
		row.Sampled = sample.Choice{Token: row.Token, Logprob: norm.Logprob(y.Logit), Rank: y.Rank}
		top := unsafe.Slice((*kernels.LikelyParams)(unsafe.Pointer(unsafe.SliceData(likely))),
			(n+1)*int(p.Widest))[n*int(p.Widest):]
		for k := range min(int(row.Logprobs), int(p.Vocab)) {
			row.Top = append(row.Top, sample.Choice{Token: top[k].Token,
				Logprob: norm.Logprob(top[k].Logit), Rank: int32(k + 1)})
		}
	}
}
