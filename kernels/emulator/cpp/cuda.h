// Environment of a .cu file that is compiled for the CPU: CUDA's extensions and the instructions of
// kernels/cuda/instructions.cuh, implemented with the fibers in block.h. Included before the file,
// which is compiled unchanged.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"
#include "register.h"

#define __device__
#define __host__
#define __constant__ static const
#ifndef EMULATOR_MODULE
#define __forceinline__ inline
#else
// As on a device: an instruction that is known at compile time is known where it is computed.
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __noinline__ inline
#define __grid_constant__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)

// A kernel, its launch bounds in parentheses, and its parameters. The second declaration begins the
// kernel's definition.
#define KERNEL(name, bounds, ...)                                                                                     \
    static void name(__VA_ARGS__);                                                                                    \
    static const emulator::Registration name##_registration(emulator::describe<name>(#name, emulator::threads_max bounds)); \
    static void name(__VA_ARGS__)

// A variable that the threads of a block share, and the dynamic shared memory of the launch.
#define SHARED(type, name) type& name = *static_cast<type*>(emulator::current->block->variable(sizeof(type)))
#define DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(emulator::current->block->dynamic_shared())

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block->index)
#define blockDim (emulator::current->block->dimensions)
#define gridDim (emulator::current->block->grid)

#define EMULATOR_TEXT_OF(x) #x
#define EMULATOR_TEXT(x) EMULATOR_TEXT_OF(x)
#define __syncthreads() emulator::current->block->sync_threads(__FILE__ ":" EMULATOR_TEXT(__LINE__))

namespace emulator {

template <class T>
inline T shuffle(T value, unsigned source) {
    struct Operands {
        T value;
        unsigned source;
        T result;
    } mine{value, source, T()};
    Block& block = *current->block;
    block.together("shuffle", &mine, [&](Warp& warp) {
        for (unsigned lane = 0; lane < warp_lanes; lane++) {
            if (!(warp.arrived >> lane & 1)) continue;
            auto& of = *static_cast<Operands*>(warp.operands[lane]);
            if (!(warp.arrived >> of.source & 1)) block.fail("a shuffle reads a lane that is not there");
            of.result = static_cast<Operands*>(warp.operands[of.source])->value;
        }
    });
    return mine.result;
}

inline unsigned ballot(bool predicate) {
    struct Operands {
        bool predicate;
        unsigned result;
    } mine{predicate, 0};
    current->block->together("ballot", &mine, [](Warp& warp) {
        unsigned votes = 0;
        for (unsigned lane = 0; lane < warp_lanes; lane++)
            if (warp.arrived >> lane & 1) votes |= unsigned(static_cast<Operands*>(warp.operands[lane])->predicate) << lane;
        for (unsigned lane = 0; lane < warp_lanes; lane++)
            if (warp.arrived >> lane & 1) static_cast<Operands*>(warp.operands[lane])->result = votes;
    });
    return mine.result;
}

// An instruction that requires all lanes of a warp.
inline void whole(Block& block, const Warp& warp, const char* what) {
    if (warp.arrived != 0xffffffffu) block.fail(std::string(what) + " takes all lanes of a warp");
}

}  // namespace emulator

inline void __syncwarp(unsigned = 0xffffffffu) {
    emulator::current->block->together("__syncwarp", nullptr, [](emulator::Warp&) {});
}
template <class T>
inline T __shfl_sync(unsigned, T value, int source) {
    return emulator::shuffle(value, unsigned(source) & 31);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulator::shuffle(value, (emulator::current->lane ^ unsigned(mask)) & 31);
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned by) {
    const unsigned source = emulator::current->lane + by;
    return emulator::shuffle(value, source > 31 ? emulator::current->lane : source);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, unsigned by) {
    const unsigned lane = emulator::current->lane;
    return emulator::shuffle(value, lane < by ? lane : lane - by);
}
inline unsigned __ballot_sync(unsigned, bool predicate) { return emulator::ballot(predicate); }
inline int __any_sync(unsigned, bool predicate) { return emulator::ballot(predicate) != 0; }

inline int atomicAdd(int* at, int by) { return __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* at, unsigned by) { return __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }

// CUDA's mathematical functions beyond the C library's. CUDA overloads `min` and `max` for all
// number types.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __int_as_float(int bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline int __float_as_int(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }

#include "instructions.h"
