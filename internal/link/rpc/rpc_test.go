package rpc

import (
	"reflect"
	"strings"
	"testing"
)

func TestEncode(t *testing.T) {
	type args struct {
		N    int    `json:"n"`
		Name string `json:"name,omitempty"`
	}
	round(t, None{}, "")
	round(t, Raw("\x00 as it is"), "\x00 as it is")
	round(t, 7, "7")
	round(t, true, "true")
	round(t, "id", `"id"`)
	round(t, args{N: 1}, `{"n":1}`)
	round(t, []args{{N: 1, Name: "x"}}, `[{"n":1,"name":"x"}]`)
}

func round[T any](t *testing.T, v T, want string) {
	t.Helper()
	b, err := Encode(v)
	if err != nil || string(b) != want {
		t.Errorf("%#v: %q, %v, want %q", v, b, err, want)
	}
	if got, err := Decode[T](b); err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%q: %#v, %v, want %#v", b, got, err, v)
	}
	if zero, err := Decode[T](nil); err != nil || !reflect.ValueOf(&zero).Elem().IsZero() {
		t.Errorf("no bytes: %#v, %v", zero, err)
	}
}

func TestDecodeAll(t *testing.T) {
	if list, err := DecodeAll[int]([][]byte{[]byte("1"), nil}); err != nil ||
		!reflect.DeepEqual(list, []int{1, 0}) {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := DecodeAll[int]([][]byte{[]byte("1"), []byte("{")}); err == nil ||
		!strings.HasPrefix(err.Error(), "rank 1: decode int: ") {
		t.Error(err)
	}
}
