package server

import "testing"

func TestRoomForConnections(t *testing.T) {
	for _, c := range []struct{ limit, used, most, spare int }{
		{1 << 20, 20, mostConnections, spareConnections},
		{1024, 24, 968, 16},
		{64, 14, 32, 10},
		{20, 14, 3, 1},
		{16, 20, 1, 1},
	} {
		if most, spare := roomForConnections(c.limit, c.used); most != c.most || spare != c.spare {
			t.Errorf("limit %d, %d in use: %d and %d, want %d and %d", c.limit, c.used, most, spare,
				c.most, c.spare)
		}
	}
}
