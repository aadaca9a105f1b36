// A block's tile of a matrix product, shared by GEMM and convolution:
// C[m x n] += A[m x k] B[k x n].
//
// Tiles of A and B go through a ring of `stages` buffers in shared memory. While one tile is
// multiplied, the next are being loaded. There is one barrier per step of k. This is the scheme of
// CUTLASS's multistage kernels (github.com/NVIDIA/cutlass, media/docs/efficient_gemm.md).
#pragma once
#include "units.cuh"

// Run the ring over k_begin <= k < k_end. `shared` has space for S::stages tiles of A and of B.
template <class S, class A, class B, class T, class LoadA, class LoadB, class Math>
__device__ __forceinline__ void multiply(T* shared, LoadA& load_a, LoadB& load_b, int k_begin, int k_end, Math& math) {
    constexpr int stages = S::stages, k = S::k_bytes / int(sizeof(T));
    T* const tiles_b = shared + stages * A::elements;
    const int steps = (k_end - k_begin + k - 1) / k;
    const auto fetch = [&](int step) {
        load_a.fetch(shared + step % stages * A::elements, k_begin + step * k);
        load_b.fetch(tiles_b + step % stages * B::elements, k_begin + step * k);
    };
    const auto keep = [&](int step) {
        load_a.keep(shared + step % stages * A::elements);
        load_b.keep(tiles_b + step % stages * B::elements);
    };
#pragma unroll 1
    for (int step = 0; step < stages - 1; step++) {
        if (step < steps) {
            fetch(step);
            keep(step);
        }
        copy_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        // The data of this step has arrived for all threads, and all threads have finished with the
        // buffer that is filled next.
        copy_async_wait<stages - 2>();
        __syncthreads();
        const int next = step + stages - 1;
        if (next < steps) fetch(next);
        copy_async_commit();
        math.step(shared + step % stages * A::elements, tiles_b + step % stages * B::elements);
        if (next < steps) keep(next);
    }
}

template <template <class, class, class, class, bool, bool> class Math>
constexpr bool is_plain = false;
template <>
constexpr bool is_plain<Plain> = true;

// Minimum number of blocks per multiprocessor, for kernels whose default register allocation spills
// on some architecture (`kernels/resources.tsv`). 0 selects the assembler's default.
template <class T, class S, template <class, class, class, class, bool, bool> class Math, bool a_along_k, bool b_along_k>
constexpr int blocks_min = S::m == Large::m    ? (is_plain<Math> && a_along_k && b_along_k ? 2 : 0)
                           : S::m == Medium::m ? (sizeof(T) == 4 && (!is_plain<Math> || (!a_along_k && !b_along_k)) ? 5 : 0)
                                               : (!is_plain<Math> && sizeof(T) == 2 && a_along_k && b_along_k ? 6 : 0);
