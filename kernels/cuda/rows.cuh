// Assignment of threads to a row of a matrix: one warp of the block, or the whole block.
#pragma once
#include "prelude.cuh"

struct Crew {
    u32 row, member, members;
    bool warp;
};

// In blocks whose second dimension is above 1, each warp has a separate row.
__device__ __forceinline__ Crew crew() {
    const bool warp = blockDim.y > 1;
    return {warp ? blockIdx.x * blockDim.y + threadIdx.y : blockIdx.x, threadIdx.x, blockDim.x, warp};
}

// Reduce the values of all members; every member gets the result. All threads of the block must
// call it.
template <class Way, class T>
__device__ __forceinline__ T over_crew(const Crew& crew, T value, T (&part)[32]) {
    value = over_warp<Way>(value);
    if (crew.warp || crew.members <= 32) return value;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = over_warp<Way>(threadIdx.x % 32 < crew.members / 32 ? part[threadIdx.x % 32] : Way::template none<T>());
    __syncthreads();
    return value;
}

// Broadcasting of an additive mask over rows: the innermost dimension, which is a row's, comes
// first.
struct MaskShape {
    i64 stride[dimensions_max];
    u32 size[dimensions_max];
    u32 rank;
};
static_assert(sizeof(MaskShape) == 80, "as the launch description writes it");

// Offset of the mask's first element for a row.
__device__ __forceinline__ i64 mask_row(const MaskShape& mask, u32 row) {
    i64 at = 0;
#pragma unroll
    for (int d = 1; d < dimensions_max; d++) {
        if (d >= int(mask.rank)) break;
        const u32 outer = row / mask.size[d];
        at += (row - outer * mask.size[d]) * mask.stride[d];
        row = outer;
    }
    return at;
}
