// Data movement: copies between strided windows of two buffers, transposition, fills. Kernels
// depend on the size of elements, not on their type; a launch widens elements where neighbours move
// together.
#include "prelude.cuh"

// The innermost dimension comes first. Strides and offsets are in elements.
struct CopyShape {
    u64 count;
    i64 from_offset, to_offset;
    i64 from_stride[dimensions_max];
    i64 to_stride[dimensions_max];
    u32 size[dimensions_max];
    u32 rank;
};
static_assert(sizeof(CopyShape) == 152, "as CopyShape::pack writes it");

template <class T>
__device__ __forceinline__ void copy(T* to, const T* from, const CopyShape& shape) {
    for (u64 i = first_element(); i < shape.count; i += element_step()) {
        u32 rest = u32(i);
        i64 source = shape.from_offset, target = shape.to_offset;
#pragma unroll
        for (int d = 0; d < dimensions_max; d++) {
            if (d >= int(shape.rank)) break;
            const u32 outer = d + 1 == int(shape.rank) ? 0 : rest / shape.size[d];
            const u32 at = rest - outer * shape.size[d];
            source += at * shape.from_stride[d];
            target += at * shape.to_stride[d];
            rest = outer;
        }
        to[target] = from[source];
    }
}

KERNEL(copy_1, (256), u8* to, const u8* from, CopyShape shape) { copy(to, from, shape); }
KERNEL(copy_2, (256), u16* to, const u16* from, CopyShape shape) { copy(to, from, shape); }
KERNEL(copy_4, (256), u32* to, const u32* from, CopyShape shape) { copy(to, from, shape); }
KERNEL(copy_8, (256), u64* to, const u64* from, CopyShape shape) { copy(to, from, shape); }
KERNEL(copy_16, (256), Pack<u64, 2>* to, const Pack<u64, 2>* from, CopyShape shape) { copy(to, from, shape); }

// Transpose `batches` matrices of rows x columns. Tiles of 32 x 32 elements pass through shared
// memory, so that reads and writes are both contiguous. 32 x 8 threads.
struct TransposeShape {
    i64 from_offset, to_offset;
    i64 from_batch_stride, to_batch_stride, from_row_stride, to_row_stride;
    u32 rows, columns;
};
static_assert(sizeof(TransposeShape) == 56, "as TransposeShape::pack writes it");

template <class T>
__device__ __forceinline__ void transpose(T* to, const T* from, const TransposeShape& shape) {
    // One padding column, so that the elements of a column are in different banks.
    typedef T Tile[32][33];
    SHARED(Tile, tile);
    from += shape.from_offset + i64(blockIdx.z) * shape.from_batch_stride;
    to += shape.to_offset + i64(blockIdx.z) * shape.to_batch_stride;
    const u32 row = blockIdx.y * 32, column = blockIdx.x * 32;
    for (u32 i = threadIdx.y; i < 32; i += 8)
        if (row + i < shape.rows && column + threadIdx.x < shape.columns)
            tile[i][threadIdx.x] = from[i64(row + i) * shape.from_row_stride + column + threadIdx.x];
    __syncthreads();
    for (u32 i = threadIdx.y; i < 32; i += 8)
        if (column + i < shape.columns && row + threadIdx.x < shape.rows)
            to[i64(column + i) * shape.to_row_stride + row + threadIdx.x] = tile[threadIdx.x][i];
}

KERNEL(transpose_1, (256), u8* to, const u8* from, TransposeShape shape) { transpose(to, from, shape); }
KERNEL(transpose_2, (256), u16* to, const u16* from, TransposeShape shape) { transpose(to, from, shape); }
KERNEL(transpose_4, (256), u32* to, const u32* from, TransposeShape shape) { transpose(to, from, shape); }
KERNEL(transpose_8, (256), u64* to, const u64* from, TransposeShape shape) { transpose(to, from, shape); }

// Fill with `value`, whose lowest bytes are the element's.
template <class T>
__device__ __forceinline__ void fill(T* to, u64 count, u64 value) {
    for (u64 i = first_element(); i < count; i += element_step()) to[i] = T(value);
}

KERNEL(fill_1, (256), u8* to, u64 count, u64 value) { fill(to, count, value); }
KERNEL(fill_2, (256), u16* to, u64 count, u64 value) { fill(to, count, value); }
KERNEL(fill_4, (256), u32* to, u64 count, u64 value) { fill(to, count, value); }
KERNEL(fill_8, (256), u64* to, u64 count, u64 value) { fill(to, count, value); }
