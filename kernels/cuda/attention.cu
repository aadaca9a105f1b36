// Attention without its matrix of scores in memory: softmax(scale q k^T + mask) v, in tiles of
// queries and keys (Dao et al., arXiv:2205.14135, algorithm 1, with the loop order of
// arXiv:2307.08691: queries outside).
#include "rows.cuh"

constexpr int queries = 32, keys = 32, threads = 128;

// Layout of queries, keys or values in their buffer, in elements; the elements of one head and
// position are contiguous.
struct HeadsShape {
    i64 offset, batch_stride, head_stride, row_stride;
};
struct AttentionShape {
    HeadsShape q, k, v;
    // Strides of the mask along batch, head, query and key.
    i64 mask_stride[4];
    u32 heads, q_len, kv_len, head_dim;
    float scale;
};
static_assert(sizeof(AttentionShape) == 152, "as the launch description writes it");

// Load `rows` rows of a head, from `first` on, into a tile whose rows are `stride` apart; pads both
// dimensions with zeroes.
template <class T, int dim, int stride>
__device__ __forceinline__ void bring(float* tile, const T* from, i64 row_stride, u32 first, u32 rows, u32 head_dim, int lines) {
    for (int i = threadIdx.x; i < lines * dim; i += threads) {
        const u32 line = i / dim, at = i % dim;
        const bool inside = first + line < rows && at < head_dim;
        tile[line * stride + at] = inside ? to_f32(from[(first + line) * row_stride + at]) : 0.0f;
    }
}

// Grid: blocks of queries, heads, sequences. Threads form 8 lines of 16. Each thread has four
// queries, and for each of them every sixteenth key and every sixteenth element of the result.
// `dim` is the head's size, rounded up.
template <class T, int dim>
__device__ __forceinline__ void attend(T* to, const T* q, const T* k, const T* v, const T* mask, const AttentionShape& shape) {
    constexpr int stride = dim + 4, own = 4, parts = dim / 16;
    DYNAMIC_SHARED(float, shared);
    float* const tile_q = shared;
    float* const tile_k = tile_q + queries * stride;
    float* const tile_v = tile_k + keys * stride;
    float* const weights = tile_v + keys * stride;
    constexpr int weights_stride = keys + 1;
    const u32 head = blockIdx.y, sequence = blockIdx.z, first_query = blockIdx.x * queries;
    const int line = threadIdx.x / 16, column = threadIdx.x % 16;
    const auto start = [&](const T* from, const HeadsShape& at) {
        return from + at.offset + sequence * at.batch_stride + head * at.head_stride;
    };
    const T* const from_k = start(k, shape.k);
    const T* const from_v = start(v, shape.v);
    bring<T, dim, stride>(tile_q, start(q, shape.q), shape.q.row_stride, first_query, shape.q_len, shape.head_dim, queries);

    float most[own], sum[own], result[own][parts];
#pragma unroll
    for (int i = 0; i < own; i++) {
        most[i] = Max::none<float>();
        sum[i] = 0.0f;
#pragma unroll
        for (int n = 0; n < parts; n++) result[i][n] = 0.0f;
    }

    for (u32 first_key = 0; first_key < shape.kv_len; first_key += keys) {
        // All threads have finished with the previous keys.
        __syncthreads();
        bring<T, dim, stride>(tile_k, from_k, shape.k.row_stride, first_key, shape.kv_len, shape.head_dim, keys);
        bring<T, dim, stride>(tile_v, from_v, shape.v.row_stride, first_key, shape.kv_len, shape.head_dim, keys);
        __syncthreads();

        float score[own][2] = {};
#pragma unroll 2
        for (int d = 0; d < dim; d += 4) {
            typedef Pack<float, 4> Four;
            Four right[2];
#pragma unroll
            for (int j = 0; j < 2; j++) right[j] = *reinterpret_cast<const Four*>(tile_k + (column + 16 * j) * stride + d);
#pragma unroll
            for (int i = 0; i < own; i++) {
                const Four left = *reinterpret_cast<const Four*>(tile_q + (line * own + i) * stride + d);
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) score[i][j] += left.of[e] * right[j].of[e];
            }
        }

#pragma unroll
        for (int i = 0; i < own; i++) {
            const u32 query = first_query + line * own + i;
            float larger = most[i];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 key = first_key + column + 16 * j;
                score[i][j] *= shape.scale;
                if (key >= shape.kv_len)
                    score[i][j] = Max::none<float>();
                else if (mask != nullptr && query < shape.q_len)
                    score[i][j] += to_f32(mask[sequence * shape.mask_stride[0] + head * shape.mask_stride[1] +
                                               query * shape.mask_stride[2] + key * shape.mask_stride[3]]);
                larger = Max::of(larger, score[i][j]);
            }
#pragma unroll
            for (int other = 8; other > 0; other >>= 1) larger = Max::of(larger, __shfl_xor_sync(all_lanes, larger, other));
            // All scores so far are negative infinity: their weights are 0, and there is no sum to
            // scale.
            const bool none = larger == Max::none<float>();
            const float factor = none ? 1.0f : expf(most[i] - larger);
            float added = 0.0f;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float weight = none ? 0.0f : expf(score[i][j] - larger);
                weights[(line * own + i) * weights_stride + column + 16 * j] = weight;
                added += weight;
            }
#pragma unroll
            for (int other = 8; other > 0; other >>= 1) added += __shfl_xor_sync(all_lanes, added, other);
            sum[i] = sum[i] * factor + added;
            most[i] = larger;
#pragma unroll
            for (int n = 0; n < parts; n++) result[i][n] *= factor;
        }

        // Threads of one warp write the weights of a line, so a barrier of the warp is enough.
        __syncwarp();
#pragma unroll 4
        for (int key = 0; key < keys; key++) {
            float weight[own];
#pragma unroll
            for (int i = 0; i < own; i++) weight[i] = weights[(line * own + i) * weights_stride + key];
#pragma unroll
            for (int n = 0; n < parts; n++) {
                const float value = tile_v[key * stride + column + 16 * n];
#pragma unroll
                for (int i = 0; i < own; i++) result[i][n] += weight[i] * value;
            }
        }
        __syncwarp();
    }

#pragma unroll
    for (int i = 0; i < own; i++) {
        const u32 query = first_query + line * own + i;
        if (query >= shape.q_len) continue;
        T* const out = to + ((u64(sequence) * shape.q_len + query) * shape.heads + head) * shape.head_dim;
        const float factor = 1.0f / sum[i];
#pragma unroll
        for (int n = 0; n < parts; n++)
            if (column + 16 * n < int(shape.head_dim)) from_f32(out[column + 16 * n], result[i][n] * factor);
    }
}

// Minimum number of blocks per multiprocessor, which bounds the registers of a thread. With large
// heads, the assembler's default uses so few registers that it spills on compute capability 12.0. 0
// selects the default.
template <int dim>
constexpr int blocks_min = dim == 128 ? 3 : 0;

#define ATTENTION(type, T, dim)                                                                                           \
    KERNEL(attention_##type##_##dim, (threads, (blocks_min<dim>)), T* to, const T* q, const T* k, const T* v, const T* mask, \
           AttentionShape shape) {                                                                                        \
        attend<T, dim>(to, q, k, v, mask, shape);                                                                         \
    }
ATTENTION(f32, float, 32)
ATTENTION(f32, float, 64)
ATTENTION(f32, float, 128)
ATTENTION(f16, f16, 32)
ATTENTION(f16, f16, 64)
ATTENTION(f16, f16, 128)
ATTENTION(bf16, bf16, 32)
ATTENTION(bf16, bf16, 64)
ATTENTION(bf16, bf16, 128)
