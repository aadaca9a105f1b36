// Batched matrix products, generic over the arithmetic units (`Math`).
#pragma once
#include "product.cuh"

#include "epilogue.cuh"

constexpr int batch_dimensions_max = 4;

struct GemmShape {
    // Of the operands, in elements: the offset of the first matrix, the stride between its lines in
    // memory, and the strides between matrices along each dimension of the batch, innermost first.
    i64 a_offset, b_offset, a_stride, b_stride;
    i64 a_batch_stride[batch_dimensions_max], b_batch_stride[batch_dimensions_max];
    u32 batch_size[batch_dimensions_max];
    u32 batch_rank, k;
    // Length of k per block: all, or a part.
    u32 k_part;
    u32 tiles_m;
    // Whether lines can be read 16 bytes at a time.
    u32 a_packed, b_packed;
    Output output;
};
static_assert(sizeof(GemmShape) == 192, "as the launch description writes it");

__device__ __forceinline__ void find_matrices(const GemmShape& shape, u32 batch, i64& a, i64& b) {
    a = shape.a_offset;
    b = shape.b_offset;
#pragma unroll
    for (int d = 0; d < batch_dimensions_max; d++) {
        if (d >= int(shape.batch_rank)) break;
        const u32 outer = batch / shape.batch_size[d], at = batch - outer * shape.batch_size[d];
        a += at * shape.a_batch_stride[d];
        b += at * shape.b_batch_stride[d];
        batch = outer;
    }
}

// Grid: tiles (rows of C first), parts of k, matrices.
template <class T, class S, template <class, class, class, class, bool, bool> class Math, bool a_along_k, bool b_along_k>
__device__ __forceinline__ void gemm(T* to, const T* a, const T* b, const void* bias, const T* residual, float* parts,
                                     const GemmShape& shape) {
    constexpr int k = S::k_bytes / int(sizeof(T));
    typedef Operand<T, S::m, k, S::threads, a_along_k> A;
    typedef Operand<T, S::n, k, S::threads, b_along_k> B;
    DYNAMIC_SHARED(T, shared);
    const u32 first_m = blockIdx.x % shape.tiles_m * S::m, first_n = blockIdx.x / shape.tiles_m * S::n;
    const u32 k_begin = blockIdx.y * shape.k_part, k_end = min(k_begin + shape.k_part, shape.k);
    i64 a_at, b_at;
    find_matrices(shape, blockIdx.z, a_at, b_at);
    auto load_a = A::load(a + a_at, shape.a_stride, first_m, shape.output.m, k_end, shape.a_packed != 0);
    auto load_b = B::load(b + b_at, shape.b_stride, first_n, shape.output.n, k_end, shape.b_packed != 0);
    Math<T, S, typename A::Lines, typename B::Lines, a_along_k, b_along_k> math;
    multiply<S, typename A::Lines, typename B::Lines>(shared, load_a, load_b, int(k_begin), int(k_end), math);
    const Epilogue<T> epilogue = {to, bias, nullptr, nullptr, residual, parts, u64(blockIdx.y) * gridDim.z + blockIdx.z};
    finish<S>(shared, math, shape.output, epilogue, blockIdx.z, first_m, first_n);
}

#define GEMM(name, T, S, Math, a_along_k, b_along_k)                                                                   \
    KERNEL(gemm_##name, (S::threads, (blocks_min<T, S, Math, a_along_k, b_along_k>)), T* to, const T* a, const T* b,   \
           const void* bias, const T* residual, float* parts, GemmShape shape) {                                      \
        gemm<T, S, Math, a_along_k, b_along_k>(to, a, b, bias, residual, parts, shape);                                \
    }

// All layouts at one size, and the layouts that networks use at the others. The first letter is n
// if rows of A are contiguous, else t; the second letter describes B likewise.
#define GEMMS_MEDIUM(type, T, Math)                         \
    GEMM(nn_##type##_medium, T, Medium, Math, true, false)  \
    GEMM(nt_##type##_medium, T, Medium, Math, true, true)   \
    GEMM(tn_##type##_medium, T, Medium, Math, false, false) \
    GEMM(tt_##type##_medium, T, Medium, Math, false, true)
#define GEMMS(type, T, Math)                               \
    GEMMS_MEDIUM(type, T, Math)                            \
    GEMM(nn_##type##_large, T, Large, Math, true, false)   \
    GEMM(nt_##type##_large, T, Large, Math, true, true)    \
    GEMM(nn_##type##_small, T, Small, Math, true, false)   \
    GEMM(nt_##type##_small, T, Small, Math, true, true)
