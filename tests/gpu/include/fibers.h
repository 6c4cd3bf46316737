// Runs a grid of GPU threads on one thread of the CPU, to check the values that a kernel computes.
//
// Every GPU thread of a block is a fiber with a stack of its own. It runs until it meets a barrier
// and then hands control back to the loop over the block, which resumes it once all those it waits
// for have arrived. Threads run one after the other, in ascending or in descending order: a kernel
// that lacks a barrier computes something else in at least one of the two, as a rule. What a block
// shares is filled with NaN before the block starts.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

// All shared variables lie in one section of the library, between these two symbols of the linker.
#define EMU_SHARED static __attribute__((section("emu_shared")))
extern "C" {
extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));
}

namespace emu {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;

struct Dim {
  unsigned x, y, z;
  unsigned size() const { return x * y * z; }
  Dim at(unsigned index) const { return {index % x, index / x % y, index / (x * y)}; }
};

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };

struct Fiber {
  ucontext_t context;
  State state;
  int line;            // of the block barrier at which it waits
  uint64_t offers[2];  // what it shows to the other lanes of its warp
  std::vector<char> stack = std::vector<char>(kStackBytes);
};

// The block that is running.
struct Block {
  Dim grid, shape, index;
  std::function<void()> kernel;
  std::vector<Fiber> fibers;
  std::vector<char> dynamic;  // dynamic shared memory
  ucontext_t loop;
  int running;
  bool is_descending;
  bool is_divergent;  // threads waited at different barriers, or left while others waited
};
inline Block* block;

inline Dim thread_index() { return block->shape.at(block->running); }
inline int lane() { return block->running % kWarp; }

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(block->dynamic.data());
}

inline void wait(State state, int line = 0) {
  Fiber& self = block->fibers[block->running];
  self.state = state;
  self.line = line;
  swapcontext(&self.context, &block->loop);
}
inline void warp_barrier() { wait(State::kAtWarpBarrier); }
inline void block_barrier(int line) { wait(State::kAtBlockBarrier, line); }

// Returns the value that `lane` of the same warp offers in the same call, or one's own if there is
// no such lane.
template <class T>
T exchange(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(Fiber::offers));
  std::vector<Fiber>& fibers = block->fibers;
  const int self = block->running, other = self / kWarp * kWarp + lane;
  std::memcpy(fibers[self].offers, &value, sizeof(T));
  warp_barrier();  // all have offered
  T result = value;
  const bool is_lane = lane >= 0 && lane < kWarp && other < static_cast<int>(fibers.size());
  if (is_lane && fibers[other].state != State::kDone) {
    std::memcpy(&result, fibers[other].offers, sizeof(T));
  }
  warp_barrier();  // all have taken
  return result;
}

inline void fiber_main() {
  block->kernel();
  block->fibers[block->running].state = State::kDone;
  swapcontext(&block->fibers[block->running].context, &block->loop);
}

// Runs each thread of a warp until it waits for the whole block or is done.
inline void run_warp(int begin, int end) {
  for (;;) {
    bool ran = false, waits = false;
    for (int step = 0; step < end - begin; ++step) {
      const int thread = block->is_descending ? end - 1 - step : begin + step;
      Fiber& fiber = block->fibers[thread];
      if (fiber.state == State::kReady) {
        block->running = thread;
        swapcontext(&block->loop, &fiber.context);
        ran = true;
      }
      waits |= fiber.state == State::kAtWarpBarrier;
    }
    if (!ran && !waits) return;
    for (int thread = begin; thread < end; ++thread) {  // lanes that wait elsewhere are inactive
      Fiber& fiber = block->fibers[thread];
      if (fiber.state == State::kAtWarpBarrier) fiber.state = State::kReady;
    }
  }
}

// Lets the threads pass the barrier that they all wait at. Returns whether any is left to run.
inline bool pass_block_barrier() {
  const int line = block->fibers.front().line;
  const State state = block->fibers.front().state;
  for (Fiber& fiber : block->fibers) {
    if (fiber.state != state || fiber.line != line) block->is_divergent = true;
    if (fiber.state == State::kAtBlockBarrier) fiber.state = State::kReady;
  }
  return state != State::kDone && !block->is_divergent;
}

inline void run_block() {
  if (__start_emu_shared) {
    std::memset(__start_emu_shared, 0xff, __stop_emu_shared - __start_emu_shared);
  }
  std::memset(block->dynamic.data(), 0xff, block->dynamic.size());
  for (Fiber& fiber : block->fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, fiber_main, 0);
    fiber.state = State::kReady;
    fiber.line = 0;
  }
  const int threads = block->fibers.size(), warps = (threads + kWarp - 1) / kWarp;
  do {
    for (int step = 0; step < warps; ++step) {
      const int begin = (block->is_descending ? warps - 1 - step : step) * kWarp;
      run_warp(begin, begin + kWarp < threads ? begin + kWarp : threads);
    }
  } while (pass_block_barrier());
}

// Returns 0, or 1 where a barrier was not met by all threads of a block.
inline int launch(std::function<void()> kernel, Dim grid, Dim shape, size_t dynamic_bytes,
                  bool is_descending) {
  Block all{grid, shape, {0, 0, 0}, kernel};
  all.fibers.resize(shape.size());
  all.dynamic.resize(dynamic_bytes);
  all.is_descending = is_descending;
  block = &all;
  for (unsigned index = 0; index < grid.size() && !all.is_divergent; ++index) {
    all.index = grid.at(index);
    run_block();
  }
  block = nullptr;
  return all.is_divergent;
}

// What a kernel gets as one of its parameters: `values[i]` points at the value.
template <class T>
T parameter(void** values, size_t i) {
  return *static_cast<std::remove_cv_t<T>*>(values[i]);
}

template <class... P, size_t... I>
void call(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
  kernel(parameter<P>(values, I)...);
}

}  // namespace emu

// Exports `emu_NAME` for a kernel. `values` points at its parameters, as in CUDA's launch call.
#define EMU_EXPORT(name)                                                                     \
  extern "C" int emu_##name(void** values, const unsigned* grid, const unsigned* block,      \
                            size_t dynamic_bytes, int is_descending) {                       \
    return emu::launch([=] { emu::call_kernel(name, values); }, {grid[0], grid[1], grid[2]}, \
                       {block[0], block[1], block[2]}, dynamic_bytes, is_descending);        \
  }
