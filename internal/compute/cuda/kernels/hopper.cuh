// What only sm_90a has: products of four warps at a time (wgmma, PTX ISA 9.7.15), of matrices that
// lie in shared memory, where tensor copies put them (cp.async.bulk.tensor, 9.7.9.25.5) while warps
// compute, and mbarriers that say when.
#pragma once
#include "rt.cuh"

// TensorMap is what cuTensorMapEncodeTiled makes, 16 bytes times 8.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// A panel is rows of 64 numbers, 128 bytes, swizzled as tensor copies do it: of a row the 16 bytes
// number c lie at c ^ (row & 7).
DI u32 in_panel(u32 row, u32 c) { return row * 128u + ((c ^ (row & 7u)) << 4); }

// descriptor is that of a matrix in panels that begins at an address, a multiple of 16 in the first
// of 8 rows. between is the bytes from a panel to the next, where the inner dimension has more than
// one (of a transposed matrix).
DI u64 descriptor(u32 at, u32 between) {
  return (u64)(at >> 4 & 0x3fff) | (u64)(between >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// here has the compiler read and write registers of a sum no earlier and no later than here: it does
// not know that products go on to write them.
template <int N>
DI void here(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[n][i])::"memory");
}

// groups_begin is before the first product that adds to d.
template <int N>
DI void groups_begin(float (&d)[N][4]) {
  here(d);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DI void groups_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// groups_wait waits for all products but those of the last n commits.
template <int n>
DI void groups_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }

// groups_end waits for all products, those that add to d among them.
template <int N>
DI void groups_end(float (&d)[N][4]) {
  groups_wait<0>();
  here(d);
}

#define TILE_AT(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TILES4_AT(d, n) TILE_AT(d, n), TILE_AT(d, n + 1), TILE_AT(d, n + 2), TILE_AT(d, n + 3)
#define TILES8_AT(d, n) TILES4_AT(d, n), TILES4_AT(d, n + 4)
#define TILES16_AT(d, n) TILES8_AT(d, n), TILES8_AT(d, n + 8)
#define TILES8(d) TILES8_AT(d, 0)
#define TILES16(d) TILES16_AT(d, 0)
#define TILES32(d) TILES16_AT(d, 0), TILES16_AT(d, 16)
#define NUMBERS32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define NUMBERS128 \
  NUMBERS64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// A product of a warp group adds 64 rows of A times 16, both of 16 bits, times tiles of 8 columns to
// d, of which each warp has 16 rows, its threads what multiply's have. A is in shared memory, or four
// registers as multiply has them.
#define PRODUCT(tiles, n, numbers, kind, sources, flags, ...)                                  \
  asm volatile("{ .reg .pred one; setp.eq.b32 one, 0, 0; "                                    \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kind " {" numbers "}, " sources \
               ", one, " flags "; }"                                                          \
               : tiles(d) : __VA_ARGS__)

template <int type, int N>
DI void multiply_group(float (&d)[N][4], u64 a, u64 b) {
  if constexpr (N == 8 && type == F16)
    PRODUCT(TILES8, 64, NUMBERS32, "f16.f16", "%32, %33", "1, 1, 0, 0", "l"(a), "l"(b));
  else if constexpr (N == 8)
    PRODUCT(TILES8, 64, NUMBERS32, "bf16.bf16", "%32, %33", "1, 1, 0, 0", "l"(a), "l"(b));
  else if constexpr (N == 16 && type == F16)
    PRODUCT(TILES16, 128, NUMBERS64, "f16.f16", "%64, %65", "1, 1, 0, 0", "l"(a), "l"(b));
  else if constexpr (N == 16)
    PRODUCT(TILES16, 128, NUMBERS64, "bf16.bf16", "%64, %65", "1, 1, 0, 0", "l"(a), "l"(b));
  else if constexpr (type == F16)
    PRODUCT(TILES32, 256, NUMBERS128, "f16.f16", "%128, %129", "1, 1, 0, 0", "l"(a), "l"(b));
  else
    PRODUCT(TILES32, 256, NUMBERS128, "bf16.bf16", "%128, %129", "1, 1, 0, 0", "l"(a), "l"(b));
}

// This has A in registers.
#define OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
template <int type, int N>
DI void multiply_group(float (&d)[N][4], const u32 (&a)[4], u64 b) {
  if constexpr (N == 8 && type == F16)
    PRODUCT(TILES8, 64, NUMBERS32, "f16.f16", "{%32, %33, %34, %35}, %36", "1, 1, 0", OPERANDS);
  else if constexpr (N == 8)
    PRODUCT(TILES8, 64, NUMBERS32, "bf16.bf16", "{%32, %33, %34, %35}, %36", "1, 1, 0", OPERANDS);
  else if constexpr (type == F16)
    PRODUCT(TILES16, 128, NUMBERS64, "f16.f16", "{%64, %65, %66, %67}, %68", "1, 1, 0", OPERANDS);
  else
    PRODUCT(TILES16, 128, NUMBERS64, "bf16.bf16", "{%64, %65, %66, %67}, %68", "1, 1, 0", OPERANDS);
}

// multiply_group_transposed has A in registers, and rows of B, not columns, side by side.
template <int type, int N>
DI void multiply_group_transposed(float (&d)[N][4], const u32 (&a)[4], u64 b) {
  if constexpr (N == 8 && type == F16)
    PRODUCT(TILES8, 64, NUMBERS32, "f16.f16", "{%32, %33, %34, %35}, %36", "1, 1, 1", OPERANDS);
  else if constexpr (N == 8)
    PRODUCT(TILES8, 64, NUMBERS32, "bf16.bf16", "{%32, %33, %34, %35}, %36", "1, 1, 1", OPERANDS);
  else if constexpr (type == F16)
    PRODUCT(TILES16, 128, NUMBERS64, "f16.f16", "{%64, %65, %66, %67}, %68", "1, 1, 1", OPERANDS);
  else
    PRODUCT(TILES16, 128, NUMBERS64, "bf16.bf16", "{%64, %65, %66, %67}, %68", "1, 1, 1", OPERANDS);
#undef OPERANDS
}

DI void barrier_init(u32 at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// barriers_visible makes mbarriers that were initialised those of copies, too.
DI void barriers_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// barrier_expect arrives, and has the phase wait for so many bytes of copies.
DI void barrier_expect(u32 at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}

DI void barrier_arrive(u32 at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

// barrier_wait waits for the end of a phase, the first of which is 0.
DI void barrier_wait(u32 at, int phase) {
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
               "@done bra end; bra again; end: }" ::"r"(at), "r"(phase & 1) : "memory");
}

// copy_box copies the box of a tensor that begins at a column and a row to a panel, whose barrier
// counts the bytes.
DI void copy_box(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}

// This copies the box that begins at a column and a row of a tensor that begins at a place.
DI void copy_box(u32 to, const TensorMap* map, int column, int place, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4}], [%5];"
               ::"r"(to), "l"(map), "r"(column), "r"(place), "r"(row), "r"(barrier) : "memory");
}

// copy_bytes copies bytes, a multiple of 16, from and to multiples of 16.
DI void copy_bytes(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// prefetch_map has the map at hand when the first box is copied.
DI void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// written_here makes what the thread wrote to shared memory visible to products and copies.
DI void written_here() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// registers_up and registers_down change how many registers the threads of a warp group have: those
// that copy leave theirs to those that compute.
template <int n>
DI void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n)); }
template <int n>
DI void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n)); }
