// Elements selected by index. A negative index counts from the end; an index out of range is
// clamped, so that no index reads past a buffer.
#include "prelude.cuh"

__device__ __forceinline__ i64 index_of(const void* indices, u64 i, u32 type, i64 size) {
    i64 index = load_i64(indices, i64(i), type);
    if (index < 0) index += size;
    return index < 0 ? 0 : index >= size ? size - 1 : index;
}

// y[o, j, i] = x[o, indices[j], i]
template <class T>
__device__ __forceinline__ void gather(T* to, const T* from, const void* indices, u32 index_type, u64 count, u32 axis, u32 picks, u32 inner) {
    for (u64 i = first_element(); i < count; i += element_step()) {
        const u32 line = u32(i) / inner, at = u32(i) - line * inner;
        const u32 outer = line / picks, pick = line - outer * picks;
        to[i] = from[(u64(outer) * axis + index_of(indices, pick, index_type, axis)) * inner + at];
    }
}

struct GatherElementsShape {
    u64 count;
    i64 axis_stride;
    // Strides of x along the dimensions of the indices, innermost first; 0 along the axis.
    i64 stride[dimensions_max];
    u32 size[dimensions_max];
    u32 rank, axis;
};
static_assert(sizeof(GatherElementsShape) == 96, "as the launch description writes it");

template <class T>
__device__ __forceinline__ void gather_elements(T* to, const T* from, const void* indices, u32 index_type, const GatherElementsShape& shape) {
    for (u64 i = first_element(); i < shape.count; i += element_step()) {
        u32 rest = u32(i);
        i64 at = index_of(indices, i, index_type, shape.axis) * shape.axis_stride;
#pragma unroll
        for (int d = 0; d < dimensions_max; d++) {
            if (d >= int(shape.rank)) break;
            const u32 outer = d + 1 == int(shape.rank) ? 0 : rest / shape.size[d];
            at += (rest - outer * shape.size[d]) * shape.stride[d];
            rest = outer;
        }
        to[i] = from[at];
    }
}

#define GATHER(bytes, T)                                                                                                              \
    KERNEL(gather_##bytes, (256), T* to, const T* from, const void* indices, u32 index_type, u64 count, u32 axis, u32 picks, u32 inner) { \
        gather(to, from, indices, index_type, count, axis, picks, inner);                                                             \
    }
#define GATHER_ELEMENTS(bytes, T)                                                                                                     \
    KERNEL(gather_elements_##bytes, (256), T* to, const T* from, const void* indices, u32 index_type, GatherElementsShape shape) {    \
        gather_elements(to, from, indices, index_type, shape);                                                                        \
    }
GATHER(1, u8)
GATHER(2, u16)
GATHER(4, u32)
GATHER(8, u64)
typedef Pack<u64, 2> Sixteen;
GATHER(16, Sixteen)
GATHER_ELEMENTS(1, u8)
GATHER_ELEMENTS(2, u16)
GATHER_ELEMENTS(4, u32)
GATHER_ELEMENTS(8, u64)
