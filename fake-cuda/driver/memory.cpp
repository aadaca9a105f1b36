// Device memory, pinned host memory, and copies between them.
//
// Uninitialised memory reads as 0xff: NaN as a float, -1 as an index. An inaccessible page follows
// every allocation.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "fake.h"

namespace fake {

constexpr uint64_t page_bytes = 4096;
constexpr uint64_t alignment_bytes = 256;

static uint64_t rounded(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static bool covers(uint64_t address, uint64_t bytes, uint64_t Region::*users, const Device* device) {
    auto& regions = state().regions;
    const uint64_t end = address + bytes;
    if (end < address) return false;
    while (address < end) {
        auto next = regions.upper_bound(address);
        if (next == regions.begin()) return false;
        const auto& [start, region] = *--next;
        if (address >= start + region.bytes || (region.*users & device->bit()) == 0) return false;
        address = start + region.bytes;
    }
    return true;
}

bool readable(uint64_t address, uint64_t bytes, const Device* device) { return covers(address, bytes, &Region::readers, device); }

bool writable(uint64_t address, uint64_t bytes, const Device* device) { return covers(address, bytes, &Region::writers, device); }

bool is_pinned(const void* address, uint64_t bytes) {
    const auto start = reinterpret_cast<uint64_t>(address);
    auto next = state().pinned.upper_bound(start);
    if (next == state().pinned.begin()) return false;
    --next;
    return start + bytes <= next->first + next->second;
}

Result allocate(Device* device, uint64_t bytes) {
    Settings& settings = state().settings;
    if (settings.allocations_left == 0 && settings.allocations_fail > 0) {
        settings.allocations_fail--;
        return OUT_OF_MEMORY;
    }
    if (settings.allocations_left != UINT64_MAX && settings.allocations_left > 0) settings.allocations_left--;
    if (device->used_bytes + bytes > settings.memory_bytes) return OUT_OF_MEMORY;
    device->used_bytes += bytes;
    return SUCCESS;
}

Result allocate_outside(Device* device, uint64_t bytes) {
    if (bytes == 0) return SUCCESS;
    if (device->used_bytes + bytes > state().settings.memory_bytes) return OUT_OF_MEMORY;
    device->used_bytes += bytes;
    return SUCCESS;
}

void note(uint64_t address, uint64_t bytes, Engine engine, Device* device) {
    if (state().done.size() < 1'000'000)
        state().done.push_back({address, bytes, uint32_t(engine), uint32_t(device->ordinal), device->engine_free_ns[int(engine)]});
}

// Map readable and writable memory with an inaccessible page after it; returns its first byte.
static char* guarded(uint64_t bytes, void** mapping, size_t* mapping_bytes) {
    const uint64_t inside = rounded(std::max<uint64_t>(bytes, 1), page_bytes);
    *mapping_bytes = inside + page_bytes;
    *mapping = mmap(nullptr, *mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*mapping == MAP_FAILED || mprotect(*mapping, inside, PROT_READ | PROT_WRITE) != 0) return nullptr;
    // As close to the inaccessible page as the alignment allows.
    char* start = static_cast<char*>(*mapping) + inside - rounded(std::max<uint64_t>(bytes, 1), alignment_bytes);
    std::memset(start, 0xff, bytes);
    return start;
}

// Report memory that existed when the copy was submitted, and is gone when the copy runs.
static Result gone(const char* what, uint64_t address, uint64_t bytes) {
    char text[160];
    snprintf(text, sizeof text, "%s uses memory that is gone: %llu bytes at %#llx", what, (unsigned long long)bytes, (unsigned long long)address);
    state().violation(text);
    state().last_fault = text;
    return ILLEGAL_ADDRESS;
}

}  // namespace fake

using namespace fake;

CUDA_API cuMemAlloc_v2(Address* address, size_t bytes) {
    Call call;
    if (call.result) return call.result;
    if (bytes == 0) return INVALID_VALUE;
    if (forbidden_in_capture("cuMemAlloc")) return STREAM_CAPTURE_UNSUPPORTED;
    if (const Result result = allocate(call.device, bytes)) return result;
    Region region{bytes, call.device, call.device->bit(), call.device->bit()};
    char* start = guarded(bytes, &region.mapping, &region.mapping_bytes);
    if (start == nullptr) return OUT_OF_MEMORY;
    *address = reinterpret_cast<Address>(start);
    state().regions[*address] = region;
    return SUCCESS;
}

CUDA_API cuMemFree_v2(Address address) {
    Call call(true);
    if (call.result) return call.result;
    if (forbidden_in_capture("cuMemFree")) return STREAM_CAPTURE_UNSUPPORTED;
    auto found = state().regions.find(address);
    if (found == state().regions.end() || found->second.mapping == nullptr) return INVALID_VALUE;
    Device* device = found->second.device;
    charge_synchronisation(device);
    // The driver waits for work that may use the memory.
    if (!device->fault)
        drain(call.lock, device, [=] {
            for (const Stream* stream : state().streams)
                if (stream->device == device && !stream->items.empty()) return false;
            return true;
        });
    device->used_bytes -= found->second.bytes;
    munmap(found->second.mapping, found->second.mapping_bytes);
    state().regions.erase(found);
    return device->fault;
}

CUDA_API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    Call call;
    if (call.result) return call.result;
    *total_bytes = state().settings.memory_bytes;
    *free_bytes = state().settings.memory_bytes - call.device->used_bytes;
    return SUCCESS;
}

CUDA_API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    Call call;
    if (call.result) return call.result;
    if (bytes == 0) return INVALID_VALUE;
    if (forbidden_in_capture("cuMemHostAlloc")) return STREAM_CAPTURE_UNSUPPORTED;
    const uint64_t inside = rounded(bytes, page_bytes);
    uint64_t pinned_bytes = 0;
    for (const auto& [address, pinned] : state().pinned) pinned_bytes += pinned;
    if (pinned_bytes + inside > state().settings.host_memory_bytes) return OUT_OF_MEMORY;
    void* mapping = mmap(nullptr, inside + page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED || mprotect(mapping, inside, PROT_READ | PROT_WRITE) != 0) return OUT_OF_MEMORY;
    std::memset(mapping, 0xff, inside);
    *address = mapping;
    state().pinned[reinterpret_cast<uint64_t>(mapping)] = inside;
    charge_synchronisation(call.device);
    charge("cuMemHostAlloc", for_mib(bytes, state().settings.prices.host_alloc_mib_ns));
    return SUCCESS;
}

CUDA_API cuMemFreeHost(void* address) {
    Call call(true);
    if (call.result) return call.result;
    const auto start = reinterpret_cast<uint64_t>(address);
    auto found = state().pinned.find(start);
    if (found == state().pinned.end()) return INVALID_VALUE;
    charge_synchronisation(call.device);
    charge("cuMemFreeHost", for_mib(found->second, state().settings.prices.host_free_mib_ns));
    auto& copied = state().copied_from;
    copied.erase(copied.lower_bound(start), copied.lower_bound(start + found->second));
    munmap(address, found->second + page_bytes);
    state().pinned.erase(found);
    return call.device->fault;
}

CUDA_API cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuMemcpyHtoDAsync")) return INVALID_HANDLE;
    Device* device = stream->device;
    if (!writable(to, bytes, device)) return INVALID_VALUE;
    const bool pinned = is_pinned(from, bytes);
    if (!pinned && stream->capture != nullptr) return STREAM_CAPTURE_UNSUPPORTED;
    // Pinned memory is read when the stream reaches the copy, pageable memory at once.
    auto staged = std::make_shared<std::vector<char>>();
    if (!pinned) staged->assign(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    state().counts["copies_to_device"]++;
    state().counts["bytes_to_device"] += bytes;
    if (pinned) charge_copy(from, bytes);
    const Result result = enqueue(stream, {"a copy to the device", Engine::TO_DEVICE, copy_ns(bytes), [=] {
        if (!writable(to, bytes, device)) return gone("a copy to the device", to, bytes);
        if (pinned && !is_pinned(from, bytes)) return gone("a copy to the device", reinterpret_cast<uint64_t>(from), bytes);
        std::memcpy(reinterpret_cast<void*>(to), pinned ? from : staged->data(), bytes);
        note(to, bytes, Engine::TO_DEVICE, device);
        return Result(SUCCESS);
    }, bytes >= LOAD_BYTES});
    progress(call.lock);
    return result;
}

CUDA_API cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuMemcpyDtoHAsync")) return INVALID_HANDLE;
    Device* device = stream->device;
    if (!readable(from, bytes, device)) return INVALID_VALUE;
    const bool pinned = is_pinned(to, bytes);
    if (!pinned && stream->capture != nullptr) return STREAM_CAPTURE_UNSUPPORTED;
    state().counts["copies_to_host"]++;
    state().counts["bytes_to_host"] += bytes;
    const Result result = enqueue(stream, {"a copy to the host", Engine::TO_HOST, copy_ns(bytes), [=] {
        if (!readable(from, bytes, device)) return gone("a copy to the host", from, bytes);
        if (pinned && !is_pinned(to, bytes)) return gone("a copy to the host", reinterpret_cast<uint64_t>(to), bytes);
        std::memcpy(to, reinterpret_cast<void*>(from), bytes);
        note(from, bytes, Engine::TO_HOST, device);
        return Result(SUCCESS);
    }});
    if (!pinned) return drain(call.lock, device, [=] { return stream->items.empty(); });
    progress(call.lock);
    return result;
}

static Result copy_between(Address to, Device* to_device, Address from, Device* from_device, size_t bytes, Stream* stream) {
    if (!writable(to, bytes, to_device) || !readable(from, bytes, from_device)) return INVALID_VALUE;
    if (bytes > 0 && std::prev(state().regions.upper_bound(from))->second.device != to_device) state().counts["bytes_between_devices"] += bytes;
    return enqueue(stream, {"a copy", Engine::COMPUTE, 2'000, [=] {
        if (!writable(to, bytes, to_device)) return gone("a copy", to, bytes);
        if (!readable(from, bytes, from_device)) return gone("a copy", from, bytes);
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
        return Result(SUCCESS);
    }});
}

CUDA_API cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuMemcpyDtoDAsync")) return INVALID_HANDLE;
    const Result result = copy_between(to, stream->device, from, stream->device, bytes, stream);
    progress(call.lock);
    return result;
}

CUDA_API cuMemcpyPeerAsync(Address to, Device* to_device, Address from, Device* from_device, size_t bytes, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuMemcpyPeerAsync")) return INVALID_HANDLE;
    const Result result = copy_between(to, to_device, from, from_device, bytes, stream);
    progress(call.lock);
    return result;
}

CUDA_API cuMemsetD8Async(Address address, unsigned char value, size_t bytes, Stream* stream) {
    Call call;
    if (call.result) return call.result;
    if (!known(stream, "cuMemsetD8Async")) return INVALID_HANDLE;
    Device* device = stream->device;
    if (!writable(address, bytes, device)) return INVALID_VALUE;
    state().counts["fills"]++;
    const Result result = enqueue(stream, {"a fill", Engine::COMPUTE, 1'000, [=] {
        if (!writable(address, bytes, device)) return gone("a fill", address, bytes);
        std::memset(reinterpret_cast<void*>(address), value, bytes);
        return Result(SUCCESS);
    }});
    progress(call.lock);
    return result;
}
