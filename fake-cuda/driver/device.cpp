// Devices and their contexts.
#include <cstdio>
#include <cstring>
#include <utility>

#include "fake.h"

using namespace fake;

static Device* device_at(Device_ ordinal) {
    if (ordinal < 0 || size_t(ordinal) >= state().devices.size()) return nullptr;
    return state().devices[size_t(ordinal)].get();
}

CUDA_API cuInit(unsigned flags) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (flags != 0) return INVALID_VALUE;
    if (state().initialised) return SUCCESS;
    if (state().settings.devices == 0) return NO_DEVICE;
    for (unsigned i = 0; i < state().settings.devices; i++) {
        state().devices.push_back(std::make_unique<Device>());
        state().devices.back()->ordinal = int(i);
    }
    state().chance.seed(state().settings.seed);
    state().initialised = true;
    return SUCCESS;
}

CUDA_API cuDriverGetVersion(int* version) {
    std::lock_guard<std::mutex> lock(state().mutex);
    *version = state().settings.driver_version;
    return SUCCESS;
}

static const char* const names[][3] = {
    {"1", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {"2", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {"3", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {"100", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {"101", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {"200", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {"201", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {"209", "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {"218", "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {"222", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
    {"400", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {"500", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {"600", "CUDA_ERROR_NOT_READY", "device not ready"},
    {"700", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {"701", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {"719", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {"801", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {"900", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {"901", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {"904", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {"905", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
};

static const char* text_of(Result code, int column) {
    const std::string number = std::to_string(code);
    for (const auto& name : names)
        if (number == name[0]) return name[column];
    return nullptr;
}

CUDA_API cuGetErrorName(Result code, const char** name) {
    *name = text_of(code, 1);
    return *name == nullptr ? INVALID_VALUE : SUCCESS;
}

// The text of a fault is followed by details, which a real driver does not know.
CUDA_API cuGetErrorString(Result code, const char** text) {
    *text = text_of(code, 2);
    if (*text == nullptr) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(state().mutex);
    if ((code == ILLEGAL_ADDRESS || code == LAUNCH_FAILED) && !state().last_fault.empty()) {
        static std::set<std::string> texts;
        *text = texts.insert(std::string(*text) + ": " + state().last_fault).first->c_str();
    }
    return SUCCESS;
}

CUDA_API cuDeviceGetCount(int* count) {
    std::lock_guard<std::mutex> lock(state().mutex);
    *count = int(state().devices.size());
    return SUCCESS;
}

CUDA_API cuDeviceGet(Device_* device, int ordinal) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (device_at(ordinal) == nullptr) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

CUDA_API cuDeviceGetName(char* name, int len, Device_) {
    snprintf(name, size_t(len), "Fake GPU");
    return SUCCESS;
}

CUDA_API cuDeviceGetPCIBusId(char* id, int len, Device_ device) {
    snprintf(id, size_t(len), "0000:%02x:00.0", device + 1);
    return SUCCESS;
}

CUDA_API cuDeviceTotalMem_v2(size_t* bytes, Device_) {
    std::lock_guard<std::mutex> lock(state().mutex);
    *bytes = state().settings.memory_bytes;
    return SUCCESS;
}

// Attributes of an H200, except for the compute capability.
CUDA_API cuDeviceGetAttribute(int* value, int attribute, Device_ device) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (device_at(device) == nullptr) return INVALID_DEVICE;
    switch (attribute) {
        case 1: *value = 1024; break;
        case 2: case 3: *value = 1024; break;
        case 4: *value = 64; break;
        case 5: *value = 2147483647; break;
        case 6: case 7: *value = 65535; break;
        case 8: *value = 48 << 10; break;
        case 10: *value = 32; break;
        case 12: *value = 65536; break;
        case 13: *value = 1'980'000; break;
        case 16: *value = 132; break;
        case 36: *value = 3'201'000; break;
        case 37: *value = 6144; break;
        case 38: *value = 60 << 20; break;
        case 39: *value = 2048; break;
        case 40: *value = 3; break;
        case 41: *value = 1; break;
        case 75: *value = int(state().settings.sm / 10); break;
        case 76: *value = int(state().settings.sm % 10); break;
        case 97: *value = 227 << 10; break;
        case 102: *value = 1; break;
        case 103: *value = state().settings.exports_memory; break;
        default: *value = 0;
    }
    return SUCCESS;
}

CUDA_API cuDeviceCanAccessPeer(int* can, Device_ device, Device_ peer) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (device_at(device) == nullptr || device_at(peer) == nullptr) return INVALID_DEVICE;
    *can = device != peer && state().settings.peer_access != 0;
    return SUCCESS;
}

CUDA_API cuDevicePrimaryCtxRetain(Device** context, Device_ ordinal) {
    std::lock_guard<std::mutex> lock(state().mutex);
    Device* device = device_at(ordinal);
    if (device == nullptr) return INVALID_DEVICE;
    if (device->retained == 0) {
        if (const Result result = allocate_outside(device, state().settings.context_bytes)) return result;
        device->context_bytes = state().settings.context_bytes;
    }
    device->retained++;
    *context = device;
    return SUCCESS;
}

CUDA_API cuDevicePrimaryCtxRelease_v2(Device_ ordinal) {
    std::lock_guard<std::mutex> lock(state().mutex);
    Device* device = device_at(ordinal);
    if (device == nullptr || device->retained == 0) return INVALID_CONTEXT;
    if (--device->retained == 0) device->used_bytes -= std::exchange(device->context_bytes, 0);
    return SUCCESS;
}

CUDA_API cuCtxSetCurrent(Device* context) {
    current = context;
    return SUCCESS;
}

CUDA_API cuCtxGetCurrent(Device** context) {
    *context = current;
    return SUCCESS;
}

CUDA_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
}
