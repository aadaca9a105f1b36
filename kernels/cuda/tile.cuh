// A block's tile of a product of matrices: C[m x n] += A[m x k] B[k x n], as GEMM and convolution share it.
//
// Tiles of A and B go through a ring of `stages` places in shared memory. While one is multiplied, the next are on their way: by cp.async
// where elements can be copied that way, else through registers. One barrier per step of k. A tile lies in shared memory as it does in
// the device's: elements that are neighbours there are neighbours here, with some padding behind each line so that the lanes of a warp read
// from different banks. This is the classic scheme of CUTLASS's multistage kernels (github.com/NVIDIA/cutlass, media/docs/efficient_gemm.md).
#pragma once
#include "prelude.cuh"

// The sizes of a tile, the warps that share it, and how many are under way.
template <int m_, int n_, int k_bytes_, int warps_m_, int warps_n_, int stages_>
struct Tile {
    static constexpr int m = m_, n = n_, k_bytes = k_bytes_, warps_m = warps_m_, warps_n = warps_n_, stages = stages_;
    static constexpr int threads = warps_m * warps_n * 32;
};

typedef Tile<128, 128, 64, 2, 4, 3> Large;
typedef Tile<64, 64, 64, 2, 2, 4> Medium;
typedef Tile<32, 32, 128, 2, 2, 4> Small;

// How a tile of `lines` lines lies in shared memory.
template <class T, int lines_, int length_, bool along_k>
struct Layout {
    static constexpr int lines = lines_, length = length_;
    static constexpr int stride = length + (sizeof(T) == 2 || !along_k ? 8 : 4);
    static constexpr int elements = lines * stride;
};

// Lines of a matrix along k: each thread brings the same place of several lines. Lines are rows of A, or columns of B.
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
    // Single halves on their way: cp.async copies no fewer than 4 bytes.
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

// Lines of a matrix across k, where neighbours have the same k: each thread brings the same place, or places, of several lines. `from` is
// where the thread's place is for k = 0.
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

    // The thread's place in a line.
    __device__ static __forceinline__ int place(bool packed) {
        return packed ? threadIdx.x % packs * pack : threadIdx.x % L::length;
    }

    __device__ __forceinline__ AcrossK(const T* from, i64 stride, bool valid, int k_end, bool packed)
        : from(from), stride(stride), k_end(k_end), valid(valid), packed(packed) {}

    __device__ __forceinline__ void fetch(T* tile, int k) {
        const int line = packed ? threadIdx.x / packs : threadIdx.x / L::length;
        const T* at = from + (k + line) * stride;
        T* to = tile + line * L::stride + place(packed);
        // Lines that are left from the thread's first on.
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

// An operand that is a matrix in memory, of which the block takes `across` lines or places from `first` on.
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

// Multiplying with the units for single numbers, in f32. Threads stand in 16 columns.
template <class T, class S, class A, class B, bool a_along_k, bool b_along_k>
struct Plain {
    static constexpr int k = S::k_bytes / int(sizeof(T));
    static constexpr int lines = S::threads / 16, rows = S::m / lines, columns = S::n / 16;
    // Columns that are neighbours.
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
        // Where lines of A run along k, four of k are read at once.
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

    // Puts the sums of `rows_at_once` rows from `first` on where `tile` has a line for each.
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

// What the units for matrices do differently from type to type.
template <class T>
struct Matrices;

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800

// f32 rounded to tf32: 8 of k at a time, each lane reads its numbers one by one.
template <>
struct Matrices<float> {
    static constexpr int k = 8;

    template <class A, bool along_k>
    __device__ static __forceinline__ void left(u32 (&r)[4], const float* a, int m, int kk) {
        const int group = threadIdx.x % 32 / 4, at = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = m + group + i % 2 * 8, depth = kk + at + i / 2 * 4;
            r[i] = f32_to_tf32(along_k ? a[row * A::stride + depth] : a[depth * A::stride + row]);
        }
    }
    // Two neighbouring matrices of B.
    template <class B, bool along_k>
    __device__ static __forceinline__ void right(u32 (&r)[2][2], const float* b, int n, int kk) {
        const int group = threadIdx.x % 32 / 4, at = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = n + group + i / 2 * 8, depth = kk + at + i % 2 * 4;
            r[i / 2][i % 2] = f32_to_tf32(along_k ? b[column * B::stride + depth] : b[depth * B::stride + column]);
        }
    }
    __device__ static __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { mma_tf32(d, a, b); }
};

// Halves: 16 of k at a time, read by ldmatrix, which also transposes.
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

// Multiplying with the units for matrices. Warps stand in S::warps_m rows and S::warps_n columns.
template <class T, class S, class A, class B, bool a_along_k, bool b_along_k>
struct Tensor {
    typedef Matrices<T> M;
    static constexpr int k = S::k_bytes / int(sizeof(T));
    static constexpr int rows = S::m / S::warps_m, columns = S::n / S::warps_n;
    static_assert(rows % 16 == 0 && columns % 16 == 0 && k % M::k == 0, "a warp's part is whole matrices");

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
#pragma unroll
        for (int kk = 0; kk < k; kk += M::k) {
            u32 left[rows / 16][4], right[columns / 8][2];
#pragma unroll
            for (int i = 0; i < rows / 16; i++) M::template left<A, a_along_k>(left[i], a, first_row() + i * 16, kk);
#pragma unroll
            for (int j = 0; j < columns / 8; j += 2) {
                u32 two[2][2];
                M::template right<B, b_along_k>(two, b, first_column() + j * 8, kk);
#pragma unroll
                for (int r = 0; r < 4; r++) right[j + r / 2][r % 2] = two[r / 2][r % 2];
            }
#pragma unroll
            for (int i = 0; i < rows / 16; i++)
#pragma unroll
                for (int j = 0; j < columns / 8; j++) M::multiply(sum[i][j], left[i], right[j]);
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

// Run the ring over k_begin <= k < k_end. `shared` has room for S::stages tiles of A and of B.
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
        // What this step reads is there, for all threads; and all are done with the place that is filled next.
        copy_async_wait<stages - 2>();
        __syncthreads();
        const int next = step + stages - 1;
        if (next < steps) fetch(next);
        copy_async_commit();
        math.step(shared + step % stages * A::elements, tiles_b + step % stages * B::elements);
        if (next < steps) keep(next);
    }
}

// Where the product goes and what is done to it: y = activation(scale (alpha c + bias) + shift + residual). `z` counts matrices of a batch,
// or groups of channels. Columns of a convolution run over the pixels of one image after the other.
struct Output {
    u64 z_stride, image_stride;
    u32 m, n;
    u32 image_columns;
    // Of the vectors: whether they run along columns rather than rows, their elements for each z, and their type.
    u32 vectors_along_n, vector_z_stride, vector_type;
    float alpha;
    Activation activation;
};
static_assert(sizeof(Output) == 56, "as the launch description writes it");

template <class T>
struct Epilogue {
    T* to;
    const void *bias, *scale, *shift;
    const T* residual;
    // Not null: unfinished sums go there, f32, a part of k after the other.
    float* parts;
    u64 part;
};

__device__ __forceinline__ float load_vector(const void* from, i64 i, u32 type) {
    if (type == type_f32) return static_cast<const float*>(from)[i];
    return type == type_f16 ? to_f32(static_cast<const f16*>(from)[i]) : to_f32(static_cast<const bf16*>(from)[i]);
}

// Store the sums of `lanes` neighbours of row m, from column n on. `n` is a multiple of `lanes`.
template <class T, int lanes>
__device__ __forceinline__ void complete(const Output& output, const Epilogue<T>& epilogue, u32 z, u32 m, u32 n, const float (&sums)[lanes]) {
    if (m >= output.m || n >= output.n) return;
    if (epilogue.parts != nullptr) {
        float* const to = epilogue.parts + (epilogue.part * output.m + m) * output.n + n;
#pragma unroll
        for (int lane = 0; lane < lanes; lane++)
            if (n + lane < output.n) to[lane] = sums[lane];
        return;
    }
    const u32 image = output.n <= output.image_columns ? 0 : n / output.image_columns;
    u32 column = n - image * output.image_columns;
    u64 line = z * output.z_stride + image * output.image_stride + u64(m) * output.image_columns;
    float bias = 0.0f, scale = 1.0f, shift = 0.0f;
    if (!output.vectors_along_n) {
        const i64 at = i64(z) * output.vector_z_stride + m;
        if (epilogue.bias != nullptr) bias = load_vector(epilogue.bias, at, output.vector_type);
        if (epilogue.scale != nullptr) scale = load_vector(epilogue.scale, at, output.vector_type);
        if (epilogue.shift != nullptr) shift = load_vector(epilogue.shift, at, output.vector_type);
    }
    const auto value = [&](int lane) {
        float sum = sums[lane] * output.alpha;
        if (!output.vectors_along_n)
            sum = (sum + bias) * scale + shift;
        else if (epilogue.bias != nullptr)
            sum += load_vector(epilogue.bias, n + lane, output.vector_type);
        return sum;
    };
    typedef Pack<T, lanes> Packed;
    if (lanes > 1 && output.image_columns % lanes == 0) {
        // All of them are in one line, at a multiple of their size.
        Packed packed, residual;
        if (epilogue.residual != nullptr) residual = *reinterpret_cast<const Packed*>(epilogue.residual + line + column);
#pragma unroll
        for (int lane = 0; lane < lanes; lane++) {
            const float sum = value(lane) + (epilogue.residual == nullptr ? 0.0f : to_f32(residual.of[lane]));
            from_f32(packed.of[lane], activate(sum, output.activation));
        }
        *reinterpret_cast<Packed*>(epilogue.to + line + column) = packed;
        return;
    }
#pragma unroll
    for (int lane = 0; lane < lanes; lane++) {
        if (n + lane >= output.n) break;
        float sum = value(lane);
        if (epilogue.residual != nullptr) sum += to_f32(epilogue.residual[line + column]);
        from_f32(epilogue.to[line + column], activate(sum, output.activation));
        if (++column == output.image_columns) {
            column = 0;
            line += output.image_stride;
        }
    }
}

// Store a block's tile. It passes through shared memory, so that threads that are neighbours store neighbours, and so that what is done to
// a sum stands in the program once, not once for each of a thread's sums.
template <class S, class T, class Math>
__device__ __forceinline__ void finish(void* shared, const Math& math, const Output& output, const Epilogue<T>& epilogue, u32 z, u32 first_m,
                                       u32 first_n) {
    constexpr int rows = S::m < 64 ? S::m : 64, stride = S::n + 4, lanes = 4, packs = S::n / lanes;
    float* const tile = static_cast<float*>(shared);
#pragma unroll 1
    for (int first = 0; first < S::m; first += rows) {
        // All are done with the ring, or with the rows before these.
        __syncthreads();
        math.template put<rows, stride>(tile, first);
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < rows * packs; i += S::threads) {
            const int row = i / packs, column = i % packs * lanes;
            const Pack<float, lanes> four = *reinterpret_cast<const Pack<float, lanes>*>(tile + row * stride + column);
            complete(output, epilogue, z, first_m + first + row, first_n + column, four.of);
        }
    }
}
