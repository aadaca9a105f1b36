// Operations on each row of a matrix: reductions, selection of the largest or smallest elements,
// cumulative sums.
#include "rows.cuh"

// Codes of the launch description.
enum Reduction : u32 {
    reduce_sum = 0, reduce_mean = 1, reduce_max = 2, reduce_min = 3, reduce_product = 4, reduce_l1 = 5, reduce_l2 = 6, reduce_squares = 7,
};

template <class V>
__device__ __forceinline__ V combine(u32 kind, V a, V b) {
    switch (kind) {
        // NaN takes precedence.
        case reduce_max: return a > b || a != a ? a : b;
        case reduce_min: return a < b || a != a ? a : b;
        case reduce_product: return a * b;
        default: return a + b;
    }
}

// Reduce the values of all members; the first member gets the result.
template <class V>
__device__ __forceinline__ V gather_up(const Crew& crew, u32 kind, V value, V none, V (&part)[32]) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) value = combine(kind, value, __shfl_xor_sync(all_lanes, value, mask));
    if (crew.warp || crew.members <= 32) return value;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < crew.members / 32 ? part[threadIdx.x % 32] : none;
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) value = combine(kind, value, __shfl_xor_sync(all_lanes, value, mask));
    return value;
}

template <class V, class Load>
__device__ __forceinline__ V reduce_row(const Crew& crew, u32 kind, u32 cols, V none, V (&part)[32], Load load) {
    V value = none;
#pragma unroll 4
    for (u32 i = crew.member; i < cols; i += crew.members) {
        V x = load(i);
        if (kind == reduce_l1) x = x < 0 ? -x : x;
        if (kind == reduce_l2 || kind == reduce_squares) x = x * x;
        value = combine(kind, value, x);
    }
    return gather_up(crew, kind, value, none, part);
}

template <class T>
__device__ __forceinline__ void reduce_floats(T* to, const T* from, u32 rows, u32 cols, u32 kind) {
    typedef float Part[32];
    SHARED(Part, part);
    const Crew who = crew();
    // Warps past the last row repeat its work.
    const u32 row = min(who.row, rows - 1);
    const float infinity = __int_as_float(0x7f800000);
    const float none = kind == reduce_max ? -infinity : kind == reduce_min ? infinity : kind == reduce_product ? 1.0f : 0.0f;
    const T* const line = from + u64(row) * cols;
    float value = reduce_row(who, kind, cols, none, part, [&](u32 i) { return to_f32(line[i]); });
    if (who.member != 0 || who.row >= rows) return;
    if (kind == reduce_mean) value /= float(cols);
    if (kind == reduce_l2) value = sqrtf(value);
    from_f32(to[row], value);
}

#define REDUCE(type, T) \
    KERNEL(reduce_##type, (1024), T* to, const T* from, u32 rows, u32 cols, u32 kind) { reduce_floats(to, from, rows, cols, kind); }
REDUCE(f32, float)
REDUCE(f16, f16)
REDUCE(bf16, bf16)

// Integer reductions wrap around. The mean and the square root are truncated towards 0.
KERNEL(reduce_integer, (1024), void* to, const void* from, u32 type, u32 rows, u32 cols, u32 kind) {
    typedef i64 Part[32];
    SHARED(Part, part);
    const Crew who = crew();
    const u32 row = min(who.row, rows - 1);
    const i64 most = 0x7fffffffffffffffLL;
    const i64 none = kind == reduce_max ? -most - 1 : kind == reduce_min ? most : kind == reduce_product ? 1 : 0;
    i64 value = reduce_row(who, kind, cols, none, part, [&](u32 i) { return load_i64(from, i64(row) * cols + i, type); });
    if (who.member != 0 || who.row >= rows) return;
    if (kind == reduce_mean) value /= i64(cols);
    if (kind == reduce_l2) value = i64(sqrt(double(value)));
    store_i64(to, row, type, value);
}

// An element and its index.
template <class V>
struct Place {
    V value;
    i64 at;
};

// Whether `a` comes before `b`; an index of -1 means no element, which comes last.
template <class V>
__device__ __forceinline__ bool before(const Place<V>& a, const Place<V>& b, bool largest, bool last) {
    if (a.at < 0 || b.at < 0) return b.at < 0 && a.at >= 0;
    if (a.value == b.value) return last ? a.at > b.at : a.at < b.at;
    return largest ? a.value > b.value : a.value < b.value;
}

template <class V>
__device__ __forceinline__ Place<V> first_of(const Crew& crew, Place<V> mine, bool largest, bool last, Place<V> (&part)[32]) {
    const auto over_lanes = [&] {
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) {
            const Place<V> other = {__shfl_xor_sync(all_lanes, mine.value, mask), __shfl_xor_sync(all_lanes, mine.at, mask)};
            if (before(other, mine, largest, last)) mine = other;
        }
    };
    over_lanes();
    if (crew.warp || crew.members <= 32) return mine;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = threadIdx.x % 32 < crew.members / 32 ? part[threadIdx.x % 32] : Place<V>{V(), -1};
    over_lanes();
    __syncthreads();
    return mine;
}

__device__ __forceinline__ float load_as(const void* from, i64 i, u32 type, float) { return load_f32(from, i, type); }
__device__ __forceinline__ i64 load_as(const void* from, i64 i, u32 type, i64) { return load_i64(from, i, type); }
__device__ __forceinline__ void store_as(void* to, i64 i, u32 type, float value) { store_f32(to, i, type, value); }
__device__ __forceinline__ void store_as(void* to, i64 i, u32 type, i64 value) { store_i64(to, i, type, value); }

// Select the first `k` elements of each row in order, with their indices: each is the first of the
// elements after the previous one.
template <class V>
__device__ __forceinline__ void select(void* values, i64* places, const void* from, u32 type, u32 rows, u32 cols, u32 k, bool largest,
                                       bool last) {
    typedef Place<V> Part[32];
    SHARED(Part, part);
    const Crew who = crew();
    const u32 row = min(who.row, rows - 1);
    const i64 line = i64(row) * cols;
    Place<V> previous = {V(), -1};
    for (u32 rank = 0; rank < k; rank++) {
        Place<V> mine = {V(), -1};
        for (u32 i = who.member; i < cols; i += who.members) {
            const Place<V> here = {load_as(from, line + i, type, V()), i};
            if (before(here, mine, largest, last) && (rank == 0 || before(previous, here, largest, last))) mine = here;
        }
        previous = first_of(who, mine, largest, last, part);
        if (who.member != 0 || who.row >= rows) continue;
        // Rows with NaN may have fewer elements in the order than in the row.
        const i64 at = previous.at < 0 ? 0 : previous.at;
        places[i64(row) * k + rank] = at;
        if (values != nullptr) store_as(values, i64(row) * k + rank, type, load_as(from, line + at, type, V()));
    }
}

KERNEL(select_float, (1024), void* values, i64* places, const void* from, u32 type, u32 rows, u32 cols, u32 k, u32 largest, u32 last) {
    select<float>(values, places, from, type, rows, cols, k, largest != 0, last != 0);
}
KERNEL(select_integer, (1024), void* values, i64* places, const void* from, u32 type, u32 rows, u32 cols, u32 k, u32 largest, u32 last) {
    select<i64>(values, places, from, type, rows, cols, k, largest != 0, last != 0);
}

// Cumulative sums: a warp walks its row, 32 elements at a time.
template <class V>
__device__ __forceinline__ void running_sums(void* to, const void* from, u32 type, u32 rows, u32 cols, bool exclusive, bool reverse) {
    const u32 row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    V before = V();
    for (u32 first = 0; first < cols; first += 32) {
        const u32 i = first + threadIdx.x;
        const i64 at = i64(row) * cols + (reverse ? cols - 1 - i : i);
        const V own = i < cols ? load_as(from, at, type, V()) : V();
        V sum = own;
#pragma unroll
        for (u32 by = 1; by < 32; by <<= 1) {
            const V left = __shfl_up_sync(all_lanes, sum, by);
            if (threadIdx.x >= by) sum += left;
        }
        if (i < cols) store_as(to, at, type, V(before + (exclusive ? sum - own : sum)));
        before += __shfl_sync(all_lanes, sum, 31);
    }
}

KERNEL(cumsum_float, (256), void* to, const void* from, u32 type, u32 rows, u32 cols, u32 exclusive, u32 reverse) {
    running_sums<float>(to, from, type, rows, cols, exclusive != 0, reverse != 0);
}
KERNEL(cumsum_integer, (256), void* to, const void* from, u32 type, u32 rows, u32 cols, u32 exclusive, u32 reverse) {
    running_sums<i64>(to, from, type, rows, cols, exclusive != 0, reverse != 0);
}
