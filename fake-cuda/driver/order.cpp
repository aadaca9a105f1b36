// Order of work in streams.
#include "fake.h"

#include <algorithm>

namespace fake {

// Never destroyed: threads may still call the driver at process exit.
static State*& the() {
    static State* the = new State;
    return the;
}

State& state() { return *the(); }

void reset() {
    delete the();
    the() = new State;
}

thread_local Device* current = nullptr;

Call::Call(bool for_release) : lock(state().mutex) {
    if (!state().initialised) {
        result = NOT_INITIALIZED;
    } else if (current == nullptr) {
        result = INVALID_CONTEXT;
    } else {
        device = current;
        if (!for_release) result = device->fault;
    }
}

bool known(Stream* stream, const char* call) {
    if (stream == nullptr) {
        state().violation(std::string(call) + " on the default stream, which the fake does not have");
        return false;
    }
    if (state().streams.count(stream) && !stream->destroyed) return true;
    state().violation(std::string(call) + " on a stream that is destroyed");
    return false;
}

bool known(Event* event, const char* call) {
    if (state().events.count(event)) return true;
    state().violation(std::string(call) + " with an event that is destroyed");
    return false;
}

void lose(Device* device, Result fault) {
    device->fault = fault;
    state().resumed.notify_all();
    for (Stream* stream : state().streams) {
        if (stream->device != device) continue;
        // Other streams may wait for these points, so mark them reached.
        for (Item& item : stream->items)
            if (item.kind == Item::RECORD) item.point->reached = true;
        stream->items.clear();
    }
}

static bool held(const Item& item) { return item.kind == Item::WORK && item.work.is_load && state().settings.loads_left == 0; }

static bool ready(const Stream* stream) {
    if (stream->items.empty()) return false;
    const Item& next = stream->items.front();
    return next.kind == Item::WAIT ? next.point->reached : !held(next);
}

// Whether a test holds up the next work of a stream.
static bool held_up() {
    for (const Stream* stream : state().streams)
        if (!stream->items.empty() && held(stream->items.front())) return true;
    return false;
}

bool step() {
    std::vector<Stream*> candidates;
    for (Stream* stream : state().streams)
        if (ready(stream)) candidates.push_back(stream);
    if (candidates.empty()) return false;
    Stream* stream = candidates[state().settings.seed == 0 ? 0 : state().chance() % candidates.size()];
    Item item = std::move(stream->items.front());
    stream->items.pop_front();
    Device* device = stream->device;
    if (item.kind == Item::WORK) {
        uint64_t start = stream->time_ns;
        uint64_t& free_ns = device->engine_free_ns[int(item.work.engine)];
        if (item.work.engine != Engine::COMPUTE) start = std::max(start, free_ns);
        stream->time_ns = start + item.work.ns;
        if (item.work.engine != Engine::COMPUTE) free_ns = stream->time_ns;
        uint64_t& loads_left = state().settings.loads_left;
        if (item.work.is_load && loads_left != UINT64_MAX) loads_left--;
        if (item.work.engine == Engine::COMPUTE) state().counts["computed"]++;
        const Result result = item.work.run();
        if (result != SUCCESS) lose(device, result);
    } else if (item.kind == Item::RECORD) {
        item.point->reached = true;
        item.point->time_ns = stream->time_ns;
    } else {
        stream->time_ns = std::max(stream->time_ns, item.point->time_ns);
    }
    if (stream->destroyed && stream->items.empty()) {
        state().streams.erase(stream);
        delete stream;
    }
    return true;
}

Result drain(std::unique_lock<std::mutex>& lock, Device* device, const std::function<bool()>& until) {
    for (;;) {
        state().resumed.wait(lock, [] { return !state().settings.paused; });
        if (device->fault != SUCCESS) return device->fault;
        if (until()) return SUCCESS;
        if (step()) continue;
        if (held_up()) {
            state().resumed.wait(lock);
        } else {
            state().violation("a wait for what nobody will ever do");
            return UNKNOWN;
        }
    }
}

// Run some work at random, without a wait.
void progress(std::unique_lock<std::mutex>&) {
    // A thread that waits behind held work wakes up and drains instead.
    if (state().settings.loads_left == 0) state().resumed.notify_all();
    if (state().settings.paused || state().settings.seed == 0) return;
    while (state().chance() % 3 == 0 && step()) {}
}

Result enqueue(Stream* stream, Work work) {
    if (stream->capture != nullptr) return record(stream, std::move(work));
    stream->items.push_back({Item::WORK, std::move(work), nullptr});
    return SUCCESS;
}

}  // namespace fake

using namespace fake;

CUDA_API cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
    Call call;
    if (call.result) return call.result;
    if (forbidden_in_capture("cuStreamCreateWithPriority")) return STREAM_CAPTURE_UNSUPPORTED;
    if (flags != 1) state().violation("a stream in order with the default stream, which the fake does not have");
    *stream = new Stream{call.device, std::clamp(priority, -5, 0)};
    state().streams.insert(*stream);
    state().counts["streams"]++;
    return SUCCESS;
}

CUDA_API cuStreamDestroy_v2(Stream* stream) {
    Call call(true);
    if (call.result) return call.result;
    if (!known(stream, "cuStreamDestroy")) return INVALID_HANDLE;
    stream->destroyed = true;
    if (stream->items.empty()) {
        state().streams.erase(stream);
        delete stream;
    }
    return call.device->fault;
}

CUDA_API cuStreamSynchronize(Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamSynchronize")) return INVALID_HANDLE;
    if (forbidden_in_capture("cuStreamSynchronize")) return STREAM_CAPTURE_UNSUPPORTED;
    return drain(call.lock, stream->device, [=] { return stream->items.empty(); });
}

CUDA_API cuStreamQuery(Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamQuery")) return INVALID_HANDLE;
    if (forbidden_in_capture("cuStreamQuery")) return STREAM_CAPTURE_UNSUPPORTED;
    // Repeated polling must make progress.
    if (!state().settings.paused) step();
    if (stream->device->fault) return stream->device->fault;
    return stream->items.empty() ? SUCCESS : NOT_READY;
}

CUDA_API cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuStreamWaitEvent") || !known(event, "cuStreamWaitEvent")) return INVALID_HANDLE;
    state().counts["waits"]++;
    if (event->capture != nullptr && state().captures.count(event->capture)) {
        if (stream->capture == nullptr) {
            stream->capture = event->capture;
            stream->capture->streams.insert(stream);
        } else if (stream->capture != event->capture) {
            return STREAM_CAPTURE_ISOLATION;
        }
        stream->tail.insert(event->nodes.begin(), event->nodes.end());
        return SUCCESS;
    }
    if (stream->capture != nullptr) {
        stream->capture->invalidated = true;
        return STREAM_CAPTURE_ISOLATION;
    }
    if (event->point) stream->items.push_back({Item::WAIT, {}, event->point});
    return SUCCESS;
}

CUDA_API cuCtxSynchronize() {
    Call call;
    if (call.result) return call.result;
    if (forbidden_in_capture("cuCtxSynchronize")) return STREAM_CAPTURE_UNSUPPORTED;
    Device* device = call.device;
    return drain(call.lock, device, [=] {
        for (const Stream* stream : state().streams)
            if (stream->device == device && !stream->items.empty()) return false;
        return true;
    });
}
