// Events.
#include "fake.h"

using namespace fake;

CUDA_API cuEventCreate(Event** event, unsigned flags) {
    Call call;
    if (call.result) return call.result;
    *event = new Event{call.device, (flags & 2) == 0};
    state().events.insert(*event);
    return SUCCESS;
}

CUDA_API cuEventDestroy_v2(Event* event) {
    Call call(true);
    if (call.result) return call.result;
    if (!known(event, "cuEventDestroy")) return INVALID_HANDLE;
    state().events.erase(event);
    delete event;
    return call.device->fault;
}

CUDA_API cuEventRecord(Event* event, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuEventRecord") || !known(event, "cuEventRecord")) return INVALID_HANDLE;
    if (event->device != stream->device) return INVALID_HANDLE;
    if (stream->capture != nullptr) {
        event->capture = stream->capture;
        event->nodes = stream->tail;
        return SUCCESS;
    }
    event->capture = nullptr;
    event->point = std::make_shared<Point>();
    stream->items.push_back({Item::RECORD, {}, event->point});
    progress(call.lock);
    return SUCCESS;
}

CUDA_API cuEventQuery(Event* event) {
    Call call;
    if (call.result) return call.result;
    if (!known(event, "cuEventQuery")) return INVALID_HANDLE;
    if (!event->point) return SUCCESS;
    if (!event->point->reached && !state().settings.paused) step();
    if (event->device->fault) return event->device->fault;
    return event->point->reached ? SUCCESS : NOT_READY;
}

CUDA_API cuEventSynchronize(Event* event) {
    Call call;
    if (call.result) return call.result;
    if (!known(event, "cuEventSynchronize")) return INVALID_HANDLE;
    if (forbidden_in_capture("cuEventSynchronize")) return STREAM_CAPTURE_UNSUPPORTED;
    if (!event->point) return SUCCESS;
    // Another thread may record the event again, or destroy it, during the wait for this point.
    const auto point = event->point;
    return drain(call.lock, event->device, [=] { return point->reached; });
}

CUDA_API cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
    Call call;
    if (call.result) return call.result;
    if (!known(start, "cuEventElapsedTime") || !known(end, "cuEventElapsedTime")) return INVALID_HANDLE;
    if (!start->timing || !end->timing || !start->point || !end->point) return INVALID_HANDLE;
    if (!start->point->reached || !end->point->reached) return NOT_READY;
    *milliseconds = float((double(end->point->time_ns) - double(start->point->time_ns)) / 1e6);
    return SUCCESS;
}
