// Types and constants of cuBLASLt that the fake needs, from its documentation: no NVIDIA header is
// used.
#pragma once
#include <cstddef>
#include <cstdint>

using Status = int;

enum : Status {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15,
};

// cudaDataType_t.
enum : int32_t { R_32F = 0, R_16F = 2, R_16BF = 14 };
// cublasComputeType_t.
enum : int32_t { COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };
// cublasLtEpilogue_t.
enum : int32_t { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6 };
// cublasLtReductionScheme_t.
enum : uint32_t { REDUCTION_COMPUTE_TYPE = 2, REDUCTION_ANY = 7 };

struct Descriptor {
    int32_t compute, scale;
    int32_t transpose[3] = {0, 0, 0};
    int32_t epilogue = EPILOGUE_DEFAULT;
    uint64_t bias = 0;
    int32_t bias_type = -1;
};

// A column-major matrix.
struct Layout {
    int32_t type;
    uint64_t rows, columns;
    int64_t stride;
    int32_t batch = 1;
    int64_t batch_stride = 0;
};

struct Preference {
    uint64_t workspace_bytes = 0;
    uint32_t reductions = REDUCTION_ANY;
    // Minimum alignments of a, b, c and d.
    uint32_t alignment_bytes[4] = {256, 256, 256, 256};
};

// An algorithm that the heuristic chose. Its content is opaque to callers.
struct Algorithm {
    uint64_t mark;
    uint64_t workspace_bytes;
    // Alignments of a, b, c and d, and of the bias.
    uint32_t alignment_bytes[5];
    uint32_t reserved[7];
};
static_assert(sizeof(Algorithm) == 64, "as cublasLtMatmulAlgo_t");

struct Heuristic {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Heuristic) == 96, "as cublasLtMatmulHeuristicResult_t");

// One call of cublasLtMatmul, queued in its stream.
struct Product {
    Descriptor descriptor;
    Layout a, b, c, d;
    uint64_t at_a, at_b, at_c, at_d, workspace;
    uint64_t workspace_bytes;
    float alpha, beta;
};

inline uint64_t element_bytes(int32_t type) { return type == R_32F ? 4 : 2; }

// Bytes from the first element of a layout to its last.
inline uint64_t bytes(const Layout& layout) {
    const uint64_t matrix = (layout.columns - 1) * uint64_t(layout.stride) + layout.rows;
    return (uint64_t(layout.batch - 1) * uint64_t(layout.batch_stride) + matrix) * element_bytes(layout.type);
}

// product.cpp
void compute(const Product& product);
