// What fakes of NVIDIA's libraries ask of the driver that they belong to, which lies beside them.
#include "fake.h"

using namespace fake;

#define LIBRARY_API extern "C" __attribute__((visibility("default")))

// Why the calling thread cannot work now, if it cannot: it has no context, or that is lost.
LIBRARY_API Result fakecuda_context() {
    Call call;
    return call.result;
}

// The same for what allocates, and so must not be called while the thread records a stream.
LIBRARY_API Result fakecuda_may_allocate(const char* what) {
    Call call;
    if (call.result) return call.result;
    return forbidden_in_capture(what) ? STREAM_CAPTURE_UNSUPPORTED : SUCCESS;
}

// Have `run` called with `data` and the stream's device when the stream gets there, as often as that is; `drop` once nothing can call it any more.
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

// Whether these bytes are memory that the device uses. Asked by what runs.
LIBRARY_API int fakecuda_covers(void* device, uint64_t address, uint64_t bytes) {
    const Device* of = static_cast<Device*>(device);
    return readable(address, bytes, of) && writable(address, bytes, of);
}

// Something that no correct program does. Told by what runs.
LIBRARY_API void fakecuda_violation(const char* text) { state().violation(text); }

// So many more things that are to be let go of, or fewer.
LIBRARY_API void fakecuda_library_holds(int more) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().library_objects += more;
}

// The memory of the calling thread's device that a handle of a library takes, and letting go of it.
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

// Something that happened once more.
LIBRARY_API void fakecuda_counted(const char* what) {
    std::lock_guard<std::mutex> lock(state().mutex);
    state().counts[what]++;
}

// A setting of a library, by its name.
LIBRARY_API uint64_t fakecuda_library_setting(const char* name) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const auto found = state().settings.libraries.find(name);
    return found == state().settings.libraries.end() ? 0 : found->second;
}
