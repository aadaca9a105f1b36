// Matrix products in f32 on scalar units, on any device; and a kernel for few rows by many columns,
// which is limited by memory bandwidth.
#include "gemm.cuh"

GEMMS(f32, float, Plain)
// Half-precision kernels for devices without tensor cores for f16 and bf16.
#if !defined(__CUDACC__) || __CUDA_ARCH__ < 800
GEMMS_MEDIUM(f16, f16, Plain)
GEMMS_MEDIUM(bf16, bf16, Plain)
#endif

// Add the sums of parts of k, always in the same order, and apply the epilogue.
template <class T>
__device__ __forceinline__ void gemm_finish(T* to, const void* bias, const void* scale, const void* shift, const T* residual,
                                            const float* parts, u32 parts_count, u32 z_count, const Output& output) {
    const Epilogue<T> epilogue = {to, bias, scale, shift, residual, nullptr, 0};
    const u64 matrix = u64(output.m) * output.n, count = matrix * z_count;
    for (u64 i = first_element(); i < count; i += element_step()) {
        float sum[1] = {};
        for (u32 part = 0; part < parts_count; part++) sum[0] += parts[part * count + i];
        const u32 z = u32(i / matrix), at = u32(i - z * matrix), m = at / output.n;
        complete(output, epilogue, z, m, at - m * output.n, sum);
    }
}

#define GEMM_FINISH(type, T)                                                                                                      \
    KERNEL(gemm_finish_##type, (256), T* to, const void* bias, const void* scale, const void* shift, const T* residual,           \
           const float* parts, u32 parts_count, u32 z_count, Output output) {                                                     \
        gemm_finish(to, bias, scale, shift, residual, parts, parts_count, z_count, output);                                       \
    }
GEMM_FINISH(f32, float)
GEMM_FINISH(f16, f16)
GEMM_FINISH(bf16, bf16)

// Multiply up to `rows_max` rows by a matrix whose columns are contiguous: one warp per column,
// which is read once.
constexpr int rows_max = 4;

template <class T, int pack>
__device__ __forceinline__ void dot(float (&sum)[rows_max], const T* a, const T* b, const GemmShape& shape) {
    typedef Pack<T, pack> Packed;
    const u32 steps = shape.k / pack;
#pragma unroll 4
    for (u32 i = threadIdx.x % 32; i < steps; i += 32) {
        const Packed right = reinterpret_cast<const Packed*>(b)[i];
#pragma unroll
        for (int m = 0; m < rows_max; m++) {
            if (m >= int(shape.output.m)) break;
            const Packed left = reinterpret_cast<const Packed*>(a + m * shape.a_stride)[i];
#pragma unroll
            for (int at = 0; at < pack; at++) sum[m] += to_f32(left.of[at]) * to_f32(right.of[at]);
        }
    }
}

template <class T>
__device__ __forceinline__ void gemv(T* to, const T* a, const T* b, const void* bias, const T* residual, const GemmShape& shape) {
    const u32 n = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (n >= shape.output.n) return;
    i64 a_at, b_at;
    find_matrices(shape, blockIdx.z, a_at, b_at);
    float sum[rows_max] = {};
    if (shape.a_packed && shape.b_packed)
        dot<T, 16 / sizeof(T)>(sum, a + a_at, b + b_at + n * shape.b_stride, shape);
    else
        dot<T, 1>(sum, a + a_at, b + b_at + n * shape.b_stride, shape);
    const Epilogue<T> epilogue = {to, bias, nullptr, nullptr, residual, nullptr, 0};
#pragma unroll
    for (int m = 0; m < rows_max; m++) sum[m] = over_warp<Sum>(sum[m]);
    if (threadIdx.x % 32 != 0) return;
#pragma unroll
    for (int m = 0; m < rows_max; m++) {
        const float one[1] = {sum[m]};
        complete(shape.output, epilogue, blockIdx.z, m, n, one);
    }
}

#define GEMV(type, T)                                                                                                   \
    KERNEL(gemv_##type, (256), T* to, const T* a, const T* b, const void* bias, const T* residual, GemmShape shape) { \
        gemv(to, a, b, bias, residual, shape);                                                                        \
    }
GEMV(f32, float)
GEMV(f16, f16)
GEMV(bf16, bf16)
