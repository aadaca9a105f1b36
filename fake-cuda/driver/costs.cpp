// Costs: the time that a real driver and a real host would spend. The fake accounts for it and
// never sleeps, so that the same calls cost the same in every run. README.md has the sources of the
// prices, and the estimate of a load's time.
#include <algorithm>
#include <cstring>

#include "fake.h"

namespace fake {

constexpr uint64_t page_bytes = 4096;
constexpr uint64_t mib = 1 << 20;

static uint64_t at_rate(uint64_t bytes, uint64_t bytes_per_s) { return uint64_t(double(bytes) * 1e9 / double(bytes_per_s)); }

// FNV-1a over words.
static uint64_t digest(const void* from, uint64_t bytes) {
    const char* at = static_cast<const char*>(from);
    uint64_t digest = 0xcbf29ce484222325 ^ bytes;
    for (; bytes > 0; at += 8, bytes -= std::min<uint64_t>(bytes, 8)) {
        uint64_t word = 0;
        memcpy(&word, at, std::min<uint64_t>(bytes, 8));
        digest = (digest ^ word) * 0x100000001b3;
    }
    return digest;
}

void charge(const char* call, uint64_t ns) {
    state().counts[std::string("calls of ") + call]++;
    state().counts[std::string("ns of ") + call] += ns;
}

uint64_t for_mib(uint64_t bytes, uint64_t mib_ns) { return uint64_t(double(bytes) * double(mib_ns) / double(mib)); }

uint64_t copy_ns(uint64_t bytes) { return state().settings.prices.copy_ns + at_rate(bytes, state().settings.bus_bytes_per_s); }

void charge_copy(const void* from, uint64_t bytes) {
    charge("copies to the device", copy_ns(bytes));
    const uint64_t contents = digest(from, bytes);
    uint64_t& before = state().copied_from[reinterpret_cast<uint64_t>(from)];
    // The contents are unchanged since the previous copy, so the host did not copy anything into
    // this memory.
    if (before == contents) return;
    before = contents;
    const Prices& prices = state().settings.prices;
    const uint64_t pages = (bytes + page_bytes - 1) / page_bytes;
    state().counts["bytes of copies of the host"] += bytes;
    charge("copies of the host", at_rate(bytes, prices.host_copy_bytes_per_s));
    charge("page faults", pages * prices.page_fault_ns);
}

void charge_synchronisation(const Device* device) {
    uint64_t ns = 0;
    for (const Stream* stream : state().streams)
        for (const Item& item : stream->items)
            if (stream->device == device && item.kind == Item::WORK) ns += item.work.ns;
    charge("implicit synchronisation", ns);
}

}  // namespace fake
