// The arithmetic units that multiply a block's tiles: scalar units and tensor cores.
#pragma once
#include "tile.cuh"

// Multiplication on scalar units, in f32. Threads form 16 columns.
template <class T, class S, class A, class B, bool a_along_k, bool b_along_k>
struct Plain {
    static constexpr int k = S::k_bytes / int(sizeof(T));
    static constexpr int lines = S::threads / 16, rows = S::m / lines, columns = S::n / 16;
    // Number of neighbouring columns.
    static constexpr int run = b_along_k ? 1 : columns < 4 ? columns : 4;

    float sum[rows][columns];

    __device__ __forceinline__ Plain() {
#pragma unroll
        for (int i = 0; i < rows; i++)
#pragma unroll
            for (int j = 0; j < columns; j++) sum[i][j] = 0.0f;
    }

    __device__ static __forceinline__ int row(int i) { return threadIdx.x / 16 + i * lines; }
    __device__ static __forceinline__ int column(int j) { return j / run * (16 * run) + threadIdx.x % 16 * run + j % run; }

    __device__ __forceinline__ void step(const T* a, const T* b) {
        // Where lines of A run along k, four elements of k are read at once.
        constexpr int deep = a_along_k ? 4 : 1;
#pragma unroll 1
        for (int kk = 0; kk < k; kk += deep) {
            Pack<T, deep> left[rows];
#pragma unroll
            for (int i = 0; i < rows; i++) {
                if constexpr (a_along_k)
                    left[i] = *reinterpret_cast<const Pack<T, deep>*>(a + row(i) * A::stride + kk);
                else
                    left[i].of[0] = a[kk * A::stride + row(i)];
            }
#pragma unroll
            for (int d = 0; d < deep; d++) {
                float right[columns];
#pragma unroll
                for (int j = 0; j < columns; j += run) {
                    if constexpr (b_along_k) {
                        right[j] = to_f32(b[column(j) * B::stride + kk + d]);
                    } else {
                        const Pack<T, run> pack = *reinterpret_cast<const Pack<T, run>*>(b + (kk + d) * B::stride + column(j));
#pragma unroll
                        for (int i = 0; i < run; i++) right[j + i] = to_f32(pack.of[i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < rows; i++) {
                    const float value = to_f32(left[i].of[d]);
#pragma unroll
                    for (int j = 0; j < columns; j++) sum[i][j] += value * right[j];
                }
            }
        }
    }

    // Write the sums of `rows_at_once` rows, from `first` on, to the lines of `tile`.
    template <int rows_at_once, int stride>
    __device__ __forceinline__ void put(float* tile, int first) const {
#pragma unroll
        for (int i = 0; i < rows; i++) {
            if (u32(row(i) - first) >= u32(rows_at_once)) continue;
#pragma unroll
            for (int j = 0; j < columns; j++) tile[(row(i) - first) * stride + column(j)] = sum[i][j];
        }
    }
};

// Differences between element types on tensor cores.
template <class T>
struct Matrices;

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800

// f32 rounded to tf32: 8 of k at a time. Lines along k are read by ldmatrix, whose rows of 8 halves
// are 4 numbers; from other lines, each lane reads its numbers separately.
template <>
struct Matrices<float> {
    static constexpr int k = 8;

    template <class A, bool along_k>
    __device__ static __forceinline__ void left(u32 (&r)[4], const float* a, int m, int kk) {
        const int lane = threadIdx.x % 32, group = lane / 4, at = lane % 4, matrix = lane / 8;
        if constexpr (along_k) {
            ldmatrix(r, a + (m + matrix % 2 * 8 + lane % 8) * A::stride + kk + matrix / 2 * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) r[i] = f32_to_tf32(__uint_as_float(r[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) r[i] = f32_to_tf32(a[(kk + at + i / 2 * 4) * A::stride + m + group + i % 2 * 8]);
        }
    }
    // Two neighbouring matrices of B.
    template <class B, bool along_k>
    __device__ static __forceinline__ void right(u32 (&r)[2][2], const float* b, int n, int kk) {
        const int lane = threadIdx.x % 32, group = lane / 4, at = lane % 4, matrix = lane / 8;
        if constexpr (along_k) {
            u32 four[4];
            ldmatrix(four, b + (n + matrix / 2 * 8 + lane % 8) * B::stride + kk + matrix % 2 * 4);
#pragma unroll
            for (int i = 0; i < 4; i++) r[i / 2][i % 2] = f32_to_tf32(__uint_as_float(four[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) r[i / 2][i % 2] = f32_to_tf32(b[(kk + at + i % 2 * 4) * B::stride + n + group + i / 2 * 8]);
        }
    }
    __device__ static __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_tf32(d, a, b); }
};

// Half precision: 16 of k at a time, read by ldmatrix, which also transposes.
template <class T>
struct HalfMatrices {
    static constexpr int k = 16;

    template <class A, bool along_k>
    __device__ static __forceinline__ void left(u32 (&r)[4], const T* a, int m, int kk) {
        const int lane = threadIdx.x % 32, matrix = lane / 8;
        if constexpr (along_k)
            ldmatrix(r, a + (m + matrix % 2 * 8 + lane % 8) * A::stride + kk + matrix / 2 * 8);
        else
            ldmatrix_transposed(r, a + (kk + matrix / 2 * 8 + lane % 8) * A::stride + m + matrix % 2 * 8);
    }
    template <class B, bool along_k>
    __device__ static __forceinline__ void right(u32 (&r)[2][2], const T* b, int n, int kk) {
        const int lane = threadIdx.x % 32, matrix = lane / 8;
        u32 four[4];
        if constexpr (along_k)
            ldmatrix(four, b + (n + matrix / 2 * 8 + lane % 8) * B::stride + kk + matrix % 2 * 8);
        else
            ldmatrix_transposed(four, b + (kk + matrix % 2 * 8 + lane % 8) * B::stride + n + matrix / 2 * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) r[i / 2][i % 2] = four[i];
    }
};
template <>
struct Matrices<f16> : HalfMatrices<f16> {
    __device__ static __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_f16(d, a, b); }
};
template <>
struct Matrices<bf16> : HalfMatrices<bf16> {
    __device__ static __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_bf16(d, a, b); }
};

// Multiplication on tensor cores. Warps form S::warps_m rows and S::warps_n columns.
template <class T, class S, class A, class B, bool a_along_k, bool b_along_k>
struct Tensor {
    typedef Matrices<T> M;
    static constexpr int k = S::k_bytes / int(sizeof(T));
    static constexpr int rows = S::m / S::warps_m, columns = S::n / S::warps_n;
    static_assert(rows % 16 == 0 && columns % 16 == 0 && k % M::k == 0, "a warp's part is whole matrices");
    // In blocks of few warps, the fragments of the next elements of k are read while those of the
    // last are multiplied. In large blocks, other warps hide the latency, and registers are scarce.
    static constexpr int buffers = S::threads > 128 ? 1 : 2;

    float sum[rows / 16][columns / 8][4];

    __device__ __forceinline__ Tensor() {
#pragma unroll
        for (int i = 0; i < rows / 16; i++)
#pragma unroll
            for (int j = 0; j < columns / 8; j++)
#pragma unroll
                for (int r = 0; r < 4; r++) sum[i][j][r] = 0.0f;
    }

    __device__ static __forceinline__ int first_row() { return threadIdx.x / 32 / S::warps_n * rows; }
    __device__ static __forceinline__ int first_column() { return threadIdx.x / 32 % S::warps_n * columns; }

    __device__ __forceinline__ void step(const T* a, const T* b) {
        u32 left[buffers][rows / 16][4], right[buffers][columns / 8][2];
        if constexpr (buffers == 2) read(left[0], right[0], a, b, 0);
#pragma unroll
        for (int kk = 0; kk < k; kk += M::k) {
            const int now = kk / M::k % buffers;
            if constexpr (buffers == 1)
                read(left[0], right[0], a, b, kk);
            else if (kk + M::k < k)
                read(left[1 - now], right[1 - now], a, b, kk + M::k);
#pragma unroll
            for (int i = 0; i < rows / 16; i++)
#pragma unroll
                for (int j = 0; j < columns / 8; j++) M::multiply(sum[i][j], left[now][i], right[now][j]);
        }
    }

    __device__ __forceinline__ void read(u32 (&left)[rows / 16][4], u32 (&right)[columns / 8][2], const T* a, const T* b, int kk) {
#pragma unroll
        for (int i = 0; i < rows / 16; i++) M::template left<A, a_along_k>(left[i], a, first_row() + i * 16, kk);
#pragma unroll
        for (int j = 0; j < columns / 8; j += 2) {
            u32 two[2][2];
            M::template right<B, b_along_k>(two, b, first_column() + j * 8, kk);
#pragma unroll
            for (int r = 0; r < 4; r++) right[j + r / 2][r % 2] = two[r / 2][r % 2];
        }
    }

    template <int rows_at_once, int stride>
    __device__ __forceinline__ void put(float* tile, int first) const {
        const int group = threadIdx.x % 32 / 4, at = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < rows / 16; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = first_row() + i * 16 + half * 8 + group - first;
                if (u32(row) >= u32(rows_at_once)) continue;
#pragma unroll
                for (int j = 0; j < columns / 8; j++) {
                    const Pack<float, 2> two = {sum[i][j][half * 2], sum[i][j][half * 2 + 1]};
                    *reinterpret_cast<Pack<float, 2>*>(tile + row * stride + first_column() + j * 8 + at * 2) = two;
                }
            }
    }
};

#endif
