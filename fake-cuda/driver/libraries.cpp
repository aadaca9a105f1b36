// Interface of the driver for the fake NVIDIA libraries beside it.
#include "fake.h"

using namespace fake;

#define LIBRARY_API extern "C" __attribute__((visibility("default")))

// Error if the calling thread has no context, or a lost one.
LIBRARY_API Result fakecuda_context() {
    Call call;
    return call.result;
}

// Like `fakecuda_context`, for calls that allocate, which are forbidden while the thread captures a
// stream.
LIBRARY_API Result fakecuda_may_allocate(const char* what) {
    Call call;
    if (call.result) return call.result;
    return forbidden_in_capture(what) ? STREAM_CAPTURE_UNSUPPORTED : SUCCESS;
}

// Queue `run(data, device)` in a stream; a graph may call it many times. `drop(data)` runs when no
// further call is possible.
LIBRARY_API Result fakecuda_enqueue(Stream* stream, const char* what, Result (*run)(void*, void*), void* data, void (*drop)(void*)) {
    const std::shared_ptr<void> owned(data, drop);
    Call call;
    if (call.result) return call.result;
    if (!known(stream, what)) return INVALID_HANDLE;
    Device* device = stream->device;
    if (device != call.device) {
        state().violation(std::string(what) + " on a stream of another device than the thread's context");
        return INVALID_HANDLE;
    }
    state().counts[what]++;
    const Result result = enqueue(stream, {what, Engine::COMPUTE, 5'000, [=] { return run(owned.get(), device); }});
    progress(call.lock);
    return result;
}

// Whether the device may access these bytes. Queued work calls it.
LIBRARY_API int fakecuda_covers(void* device, uint64_t address, uint64_t bytes) {
    const Device* of = static_cast<Device*>(device);
    return readable(address, bytes, of) && writable(address, bytes, of);
}

// Report a violation of the driver's rules. Queued work calls it.
LIBRARY_API void fakecuda_violation(const char* text) { state().violation(text); }

// Change the number of live library objects.
LIBRARY_API void fakecuda_library_holds(int more) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().library_objects += more;
}

// Take the device memory of a library handle from the calling thread's device; the next function
// returns it.
LIBRARY_API Result fakecuda_library_take(void** device, uint64_t* bytes) {
    Call call;
    if (call.result) return call.result;
    *device = call.device;
    *bytes = state().settings.library_bytes;
    return allocate_outside(call.device, *bytes);
}
LIBRARY_API void fakecuda_library_give(void* device, uint64_t bytes) {
    std::lock_guard<std::mutex> lock(state().mutex);
    static_cast<Device*>(device)->used_bytes -= bytes;
}

// Count an event.
LIBRARY_API void fakecuda_counted(const char* what) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().counts[what]++;
}

// A library setting, by name.
LIBRARY_API uint64_t fakecuda_library_setting(const char* name) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const auto found = state().settings.libraries.find(name);
    return found == state().settings.libraries.end() ? 0 : found->second;
}
