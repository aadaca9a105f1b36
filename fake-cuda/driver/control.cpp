// Control interface for tests, beyond the driver's interface. The environment sets the same
// settings as `fakecuda_set`, in one variable:
// WEIR_FAKE_CUDA="devices=2,memory_bytes=8589934592,seed=7".
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "fake.h"

using namespace fake;

// The price of this name, as tests and the environment write it.
static uint64_t* price(const std::string& name) {
    Prices& prices = state().settings.prices;
    const std::map<std::string, uint64_t*> named = {
        {"copy_ns", &prices.copy_ns},
        {"create_ns", &prices.create_ns},
        {"create_mib_ns", &prices.create_mib_ns},
        {"map_ns", &prices.map_ns},
        {"set_access_ns", &prices.set_access_ns},
        {"set_access_piece_ns", &prices.set_access_piece_ns},
        {"unmap_ns", &prices.unmap_ns},
        {"release_ns", &prices.release_ns},
        {"host_alloc_mib_ns", &prices.host_alloc_mib_ns},
        {"host_free_mib_ns", &prices.host_free_mib_ns},
        {"host_copy_bytes_per_s", &prices.host_copy_bytes_per_s},
        {"page_fault_ns", &prices.page_fault_ns},
    };
    const auto found = named.find(name);
    return found == named.end() ? nullptr : found->second;
}

static bool set(const std::string& name, const std::string& value) {
    Settings& settings = state().settings;
    const uint64_t number = strtoull(value.c_str(), nullptr, 10);
    if (name == "devices") settings.devices = unsigned(number);
    else if (name == "memory_bytes") settings.memory_bytes = number;
    else if (name == "context_bytes") settings.context_bytes = number;
    else if (name == "module_bytes") settings.module_bytes = number;
    else if (name == "graph_bytes") settings.graph_bytes = number;
    else if (name == "library_bytes") settings.library_bytes = number;
    else if (name == "host_memory_bytes") settings.host_memory_bytes = number;
    else if (name == "sm") settings.sm = unsigned(number);
    else if (name == "driver_version") settings.driver_version = int(number);
    else if (name == "seed") settings.seed = number;
    else if (name == "bus_bytes_per_s") settings.bus_bytes_per_s = number == 0 ? 1 : number;
    else if (name == "workers") settings.workers = unsigned(number);
    else if (name == "allocations_left") settings.allocations_left = number;
    else if (name == "allocations_fail") settings.allocations_fail = number;
    else if (name == "launches_left") settings.launches_left = number;
    else if (name == "fault_kernel") settings.fault_kernel = value;
    else if (name == "fault_device") settings.fault_device = int(number);
    else if (name == "fault") settings.fault = int(number);
    else if (name == "fault_signal") settings.fault_signal = int(number);
    else if (name == "idle_kernel") settings.idle_kernel = value;
    else if (name == "paused") settings.paused = number != 0;
    else if (name == "exports_memory") settings.exports_memory = number != 0;
    else if (name == "cubin_refusal") settings.cubin_refusal = int(number);
    else if (name == "held_kernel") settings.held_kernel = value;
    else if (name == "peer_access") settings.peer_access = unsigned(number);
    else if (name == "loads_left") settings.loads_left = value == "all" ? UINT64_MAX : number;
    else if (settings.failing.count(name)) settings.failing[name] = number;
    else if (uint64_t* found = price(name)) *found = name == "host_copy_bytes_per_s" && number == 0 ? 1 : number;
    else if (settings.libraries.count(name)) settings.libraries[name] = number;
    else return false;
    return true;
}

namespace {
struct Environment {
    Environment() {
        const char* text = getenv("WEIR_FAKE_CUDA");
        std::istringstream list(text == nullptr ? "" : text);
        for (std::string entry; std::getline(list, entry, ',');) {
            const size_t equals = entry.find('=');
            if (equals == std::string::npos || !set(entry.substr(0, equals), entry.substr(equals + 1))) {
                fprintf(stderr, "WEIR_FAKE_CUDA: the fake driver has no setting %s\n", entry.c_str());
                abort();
            }
        }
    }
} environment;
}  // namespace

#define CONTROL extern "C" __attribute__((visibility("default")))

// Change a setting. Returns whether a setting of this name exists.
CONTROL int fakecuda_set(const char* name, const char* value) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const bool known = set(name, value);
    if (strcmp(name, "seed") == 0) state().chance.seed(state().settings.seed);
    state().resumed.notify_all();
    return known;
}

// Number of events so far, or a current amount.
CONTROL uint64_t fakecuda_count(const char* what) {
    std::lock_guard<std::mutex> lock(state().mutex);
    uint64_t used = 0, retained = 0;
    for (const auto& device : state().devices) {
        used += device->used_bytes;
        retained += device->retained;
    }
    const std::map<std::string, uint64_t> now = {
        {"used_bytes", used},
        {"contexts", retained},
        {"live_streams", state().streams.size()},
        {"live_events", state().events.size()},
        {"live_graphs", state().graphs.size() + state().executables.size()},
        {"live_modules", state().modules.size()},
        {"live_regions", state().regions.size()},
        {"live_reservations", state().reservations.size()},
        {"live_blocks", state().physical.size()},
        {"live_pinned", state().pinned.size()},
        {"live_library_objects", uint64_t(state().library_objects)},
    };
    const auto found = now.find(what);
    if (found != now.end()) return found->second;
    const auto counted = state().counts.find(what);
    return counted == state().counts.end() ? 0 : counted->second;
}

// Memory of a device that this process uses. The management library beside the driver calls it.
CONTROL uint64_t fakecuda_used_bytes(unsigned ordinal) {
    std::lock_guard<std::mutex> lock(state().mutex);
    return ordinal < state().devices.size() ? state().devices[ordinal]->used_bytes : 0;
}

// Violations of the driver's rules, one per line. Returns the number of bytes; writes as many as
// fit.
CONTROL size_t fakecuda_violations(char* out, size_t len) {
    std::lock_guard<std::mutex> lock(state().mutex);
    std::string all;
    for (const std::string& violation : state().violations) all += violation + "\n";
    memcpy(out, all.data(), std::min(len, all.size()));
    return all.size();
}

// Completed copies between host and device, in order. Returns their number; writes as many as fit.
CONTROL size_t fakecuda_copies(Done* out, size_t len) {
    std::lock_guard<std::mutex> lock(state().mutex);
    const size_t count = std::min(len, state().done.size());
    if (count > 0) memcpy(out, state().done.data(), count * sizeof(Done));
    return state().done.size();
}

// Reset the driver to its initial state. The caller must not use any object of the driver
// afterwards.
CONTROL void fakecuda_reset() {
    fake::reset();
    current = nullptr;
}
