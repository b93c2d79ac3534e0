// Package gguftest writes files of GGUF for tests.
package gguftest

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Pair is a key of the metadata and its value: uint32, int32, float32, bool, string, or a list of
// one of these.
type Pair struct {
	Key   string
	Value any
}

// Tensor is a tensor: the innermost dimension first, as files have it.
type Tensor struct {
	Name string
	Dims []uint64
	Type uint32
	Data []byte
}

// File is a file of version 3.
func File(pairs []Pair, tensors []Tensor) []byte {
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(pairs)))
	for _, p := range pairs {
		b = value(text(b, p.Key), p.Value, true)
	}
	const align = 32
	pad := func(n int) int { return (n + align - 1) / align * align }
	at := 0
	for _, t := range tensors {
		b = binary.LittleEndian.AppendUint32(text(b, t.Name), uint32(len(t.Dims)))
		for _, d := range t.Dims {
			b = binary.LittleEndian.AppendUint64(b, d)
		}
		b = binary.LittleEndian.AppendUint32(b, t.Type)
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += pad(len(t.Data))
	}
	for _, t := range tensors {
		b = append(b, make([]byte, pad(len(b))-len(b))...)
		b = append(b, t.Data...)
	}
	return b
}

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// value appends a value, after its kind unless it is an element of a list.
func value(b []byte, v any, kind bool) []byte {
	head := func(n uint32) {
		if kind {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
	}
	switch v := v.(type) {
	case uint32:
		head(4)
		return binary.LittleEndian.AppendUint32(b, v)
	case int32:
		head(5)
		return binary.LittleEndian.AppendUint32(b, uint32(v))
	case float32:
		head(6)
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	case bool:
		head(7)
		if v {
			return append(b, 1)
		}
		return append(b, 0)
	case string:
		head(8)
		return text(b, v)
	case []string:
		return list(b, 8, v)
	case []int32:
		return list(b, 5, v)
	case []float32:
		return list(b, 6, v)
	case []bool:
		return list(b, 7, v)
	}
	panic(fmt.Sprintf("a value of %T", v))
}

func list[T any](b []byte, kind uint32, v []T) []byte {
	b = binary.LittleEndian.AppendUint32(b, 9)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(v)))
	for _, x := range v {
		b = value(b, x, false)
	}
	return b
}
