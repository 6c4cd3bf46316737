// The part of CUDA C++ that TVM's kernels use, for a C++ compiler: see fibers.h.
#pragma once

#include <cmath>

#include "fibers.h"

#define __global__
#define __device__
#define __host__
#define __shared__ EMU_SHARED
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// TVM writes "__shared__ alignas(64) float", where C++ wants alignas to come first.
#define alignas(bytes) __attribute__((aligned(bytes)))

#define threadIdx emu::thread_index()
#define blockIdx (emu::block->index)
#define blockDim (emu::block->shape)
#define gridDim (emu::block->grid)

#define __syncthreads() emu::block_barrier(__LINE__)
#define __syncwarp(...) emu::warp_barrier()
#define __activemask() 0xffffffffu

namespace emu {

template <class... P>
void call_kernel(void (*kernel)(P...), void** values) {
  call(kernel, values, std::index_sequence_for<P...>());
}

// Shuffles move values within groups of `width` lanes; out of the group, a lane keeps its own.
template <class T>
T shuffle(T value, int source, int width) {
  const bool is_in_group = source / width == lane() / width && source >= 0;
  return exchange(value, is_in_group ? source : lane());
}

}  // namespace emu

template <class T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  return emu::exchange(value, emu::lane() / width * width + source % width);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance, int width = 32) {
  return emu::shuffle(value, emu::lane() + distance, width);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance, int width = 32) {
  return emu::shuffle(value, emu::lane() - distance, width);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  return emu::shuffle(value, emu::lane() ^ mask, width);
}

#define EMU_VECTOR(name, scalar)                                                      \
  struct __attribute__((aligned(2 * sizeof(scalar)))) name##2 { scalar x, y; };       \
  struct __attribute__((aligned(4 * sizeof(scalar)))) name##4 { scalar x, y, z, w; }; \
  inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                \
  inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
EMU_VECTOR(float, float)
EMU_VECTOR(int, int)
EMU_VECTOR(uint, unsigned)
EMU_VECTOR(longlong, long long)
#undef EMU_VECTOR

template <class A, class B>
auto max(A a, B b) { return a > b ? a : b; }
template <class A, class B>
auto min(A a, B b) { return a < b ? a : b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
