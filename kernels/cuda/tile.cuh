// A block's tiles of the operands of a matrix product: their layout in shared memory, and their
// loads.
//
// A tile in shared memory has the layout of device memory: contiguous elements stay contiguous,
// with padding after each line so that the lanes of a warp read from different banks. Elements are
// loaded by cp.async where possible, else through registers.
#pragma once
#include "prelude.cuh"

// Sizes of a tile, the layout of the warps that share it, and the number of stages in flight.
template <int m_, int n_, int k_bytes_, int warps_m_, int warps_n_, int stages_>
struct Tile {
    static constexpr int m = m_, n = n_, k_bytes = k_bytes_, warps_m = warps_m_, warps_n = warps_n_, stages = stages_;
    static constexpr int threads = warps_m * warps_n * 32;
};

typedef Tile<128, 128, 64, 2, 4, 3> Large;
typedef Tile<64, 64, 64, 2, 2, 4> Medium;
typedef Tile<32, 32, 128, 2, 2, 4> Small;

// Layout of a tile of `lines` lines in shared memory.
template <class T, int lines_, int length_, bool along_k>
struct Layout {
    static constexpr int lines = lines_, length = length_;
    static constexpr int stride = length + (sizeof(T) == 2 || !along_k ? 8 : 4);
    static constexpr int elements = lines * stride;
};

// Lines of a matrix along k: each thread loads the same position of several lines. Lines are rows
// of A, or columns of B.
template <class T, class L, int threads>
struct AlongK {
    static constexpr int pack = 16 / sizeof(T);
    static constexpr int packs = L::length / pack, steps = (L::lines * packs + threads - 1) / threads;
    static constexpr int singles = L::lines * L::length / threads;
    static_assert(L::lines * packs % threads == 0 && threads % L::length == 0 && threads % packs == 0, "threads share a tile evenly");

    const T* from;
    i64 stride;
    int lines, k_end;
    bool packed;
    // Single half-precision elements in flight: cp.async copies at least 4 bytes.
    T held[sizeof(T) == 2 ? singles : 1];

    __device__ __forceinline__ AlongK(const T* from, i64 stride, int lines, int k_end, bool packed)
        : from(from), stride(stride), lines(lines), k_end(k_end), packed(packed) {}

    __device__ __forceinline__ void fetch(T* tile, int k) {
        if (packed) {
            const int line = threadIdx.x / packs, at = threadIdx.x % packs * pack;
            const T* place = from + line * stride + k + at;
            const bool inside = k + at < k_end;
            T* to = tile + line * L::stride + at;
#pragma unroll
            for (int step = 0; step < steps; step++) {
                const bool valid = inside && line + step * (threads / packs) < lines;
                copy_async<16>(to + step * (threads / packs) * L::stride, valid ? place : from, valid);
                place += (threads / packs) * stride;
            }
            return;
        }
        const int line = threadIdx.x / L::length, at = threadIdx.x % L::length;
        const T* place = from + line * stride + k + at;
        const bool inside = k + at < k_end;
        T* to = tile + line * L::stride + at;
#pragma unroll
        for (int step = 0; step < singles; step++) {
            const bool valid = inside && line + step * (threads / L::length) < lines;
            if constexpr (sizeof(T) == 4)
                copy_async<4>(to + step * (threads / L::length) * L::stride, valid ? place : from, valid);
            else
                held[step] = valid ? *place : T();
            place += (threads / L::length) * stride;
        }
    }

    __device__ __forceinline__ void keep(T* tile) {
        if (sizeof(T) == 4 || packed) return;
        T* to = tile + threadIdx.x / L::length * L::stride + threadIdx.x % L::length;
#pragma unroll
        for (int step = 0; step < singles; step++) to[step * (threads / L::length) * L::stride] = held[step];
    }
};

// Lines of a matrix across k, in which neighbours have the same k: each thread loads the same
// position, or positions, of several lines. `from` is the thread's position for k = 0.
template <class T, class L, int threads>
struct AcrossK {
    static constexpr int pack = 16 / sizeof(T);
    static constexpr int packs = L::length / pack, steps = L::lines * packs / threads;
    static constexpr int singles = L::lines * L::length / threads;
    static_assert(L::lines * packs % threads == 0 && threads % L::length == 0 && threads % packs == 0, "threads share a tile evenly");

    const T* from;
    i64 stride;
    int k_end;
    bool valid, packed;
    T held[sizeof(T) == 2 ? singles : 1];

    // The thread's position in a line.
    __device__ static __forceinline__ int place(bool packed) {
        return packed ? threadIdx.x % packs * pack : threadIdx.x % L::length;
    }

    __device__ __forceinline__ AcrossK(const T* from, i64 stride, bool valid, int k_end, bool packed)
        : from(from), stride(stride), k_end(k_end), valid(valid), packed(packed) {}

    __device__ __forceinline__ void fetch(T* tile, int k) {
        const int line = packed ? threadIdx.x / packs : threadIdx.x / L::length;
        const T* at = from + (k + line) * stride;
        T* to = tile + line * L::stride + place(packed);
        // Remaining lines from the thread's first line on.
        const int left = valid ? k_end - k - line : 0;
        if (packed) {
#pragma unroll
            for (int step = 0; step < steps; step++) {
                const bool here = step * (threads / packs) < left;
                copy_async<16>(to + step * (threads / packs) * L::stride, here ? at : from, here);
                at += (threads / packs) * stride;
            }
            return;
        }
#pragma unroll
        for (int step = 0; step < singles; step++) {
            const bool here = step * (threads / L::length) < left;
            if constexpr (sizeof(T) == 4)
                copy_async<4>(to + step * (threads / L::length) * L::stride, here ? at : from, here);
            else
                held[step] = here ? *at : T();
            at += (threads / L::length) * stride;
        }
    }

    __device__ __forceinline__ void keep(T* tile) {
        if (sizeof(T) == 4 || packed) return;
        T* to = tile + threadIdx.x / L::length * L::stride + place(false);
#pragma unroll
        for (int step = 0; step < singles; step++) to[step * (threads / L::length) * L::stride] = held[step];
    }
};

// An operand that is a matrix in memory, of which the block takes `across` lines or positions from
// `first` on.
template <class T, int across, int k, int threads, bool along_k>
struct Operand;

template <class T, int across, int k, int threads>
struct Operand<T, across, k, threads, true> {
    typedef Layout<T, across, k, true> Lines;
    typedef AlongK<T, Lines, threads> Load;
    __device__ static __forceinline__ Load load(const T* from, i64 stride, int first, int count, int k_end, bool packed) {
        return Load(from + first * stride, stride, count - first, k_end, packed);
    }
};
template <class T, int across, int k, int threads>
struct Operand<T, across, k, threads, false> {
    typedef Layout<T, k, across, false> Lines;
    typedef AcrossK<T, Lines, threads> Load;
    __device__ static __forceinline__ Load load(const T* from, i64 stride, int first, int count, int k_end, bool packed) {
        const int at = first + Load::place(packed);
        return Load(from + at, stride, at < count, k_end, packed);
    }
};
