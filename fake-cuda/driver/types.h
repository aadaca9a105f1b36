// Types and constants of the driver, from its documentation: no NVIDIA header is used.
#pragma once
#include <cstddef>
#include <cstdint>

using Result = int;
using Device_ = int;
using Address = unsigned long long;

#define CUDA_API extern "C" __attribute__((visibility("default"))) Result

enum : Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    UNKNOWN = 999,
};

// CUmemLocation, CUmemAllocationProp and CUmemAccessDesc.
struct Location {
    int type;
    int id;
};
struct AllocationProperties {
    int type;
    int handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};
struct Access {
    Location location;
    int flags;
};
static_assert(sizeof(AllocationProperties) == 32 && sizeof(Access) == 12, "as the driver has them");
