// Reserved address ranges, and physical memory that is mapped into them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "fake.h"

namespace fake {

constexpr uint64_t granularity_bytes = 2 << 20;

// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
constexpr int posix_file = 1;

// Name of an exported block's file in `/proc`.
constexpr const char* memory_file = "/memfd:fake-cuda";

static bool in_blocks(uint64_t number) { return number > 0 && number % granularity_bytes == 0; }

// Replace a mapping by inaccessible addresses.
static void close_off(uint64_t address, uint64_t bytes) {
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static bool reserved(uint64_t address, uint64_t bytes) {
    auto next = state().reservations.upper_bound(address);
    if (next == state().reservations.begin()) return false;
    --next;
    return address + bytes <= next->first + next->second;
}

Device::~Device() {
    if (memory != nullptr) munmap(memory, file_bytes);
    if (file >= 0) close(file);
}

// Create the file of a device's memory, and map all of it.
static bool open_memory(Device* device) {
    if (device->memory != nullptr) return true;
    device->file = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (device->file < 0 || ftruncate(device->file, off_t(state().settings.memory_bytes)) != 0) return false;
    void* all = mmap(nullptr, state().settings.memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, device->file, 0);
    if (all == MAP_FAILED) return false;
    device->memory = static_cast<uint8_t*>(all);
    device->file_bytes = state().settings.memory_bytes;
    device->file_holes[0] = state().settings.memory_bytes;
    return true;
}

static void forget(uint64_t handle) {
    Physical& physical = state().physical.at(handle);
    if (!physical.released || physical.mapped > 0) return;
    if (physical.imported) {
        close(physical.file);
        state().physical.erase(handle);
        return;
    }
    Device* device = physical.device;
    fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(physical.offset), off_t(physical.bytes));
    device->used_bytes -= physical.bytes;
    auto& holes = device->file_holes;
    auto hole = holes.emplace(physical.offset, physical.bytes).first;
    auto next = std::next(hole);
    if (next != holes.end() && hole->first + hole->second == next->first) {
        hole->second += next->second;
        holes.erase(next);
    }
    if (hole != holes.begin()) {
        auto before = std::prev(hole);
        if (before->first + before->second == hole->first) {
            before->second += hole->second;
            holes.erase(hole);
        }
    }
    state().physical.erase(handle);
}

}  // namespace fake

using namespace fake;

CUDA_API cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties*, int) {
    Call call;
    if (call.result) return call.result;
    *bytes = granularity_bytes;
    return SUCCESS;
}

CUDA_API cuMemAddressReserve(Address* address, size_t bytes, size_t alignment, Address, unsigned long long) {
    Call call;
    if (call.result) return call.result;
    if (!in_blocks(bytes) || (alignment != 0 && !in_blocks(alignment))) return INVALID_VALUE;
    const uint64_t align = alignment == 0 ? granularity_bytes : alignment;
    // One extra granule after the range stays inaccessible.
    const uint64_t whole = bytes + align + granularity_bytes;
    void* mapping = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return OUT_OF_MEMORY;
    const auto start = reinterpret_cast<uint64_t>(mapping);
    const uint64_t aligned = (start + align - 1) / align * align;
    const uint64_t end = aligned + bytes + granularity_bytes;
    if (aligned > start) munmap(mapping, aligned - start);
    if (start + whole > end) munmap(reinterpret_cast<void*>(end), start + whole - end);
    *address = aligned;
    state().reservations[aligned] = bytes;
    return SUCCESS;
}

CUDA_API cuMemAddressFree(Address address, size_t bytes) {
    Call call(true);
    if (call.result) return call.result;
    auto found = state().reservations.find(address);
    if (found == state().reservations.end() || found->second != bytes) return INVALID_VALUE;
    auto mapped = state().regions.lower_bound(address);
    if (mapped != state().regions.end() && mapped->first < address + bytes) {
        state().violation("addresses are freed with memory mapped into them");
        return INVALID_VALUE;
    }
    munmap(reinterpret_cast<void*>(address), bytes + granularity_bytes);
    state().reservations.erase(found);
    return call.device->fault;
}

CUDA_API cuMemCreate(unsigned long long* handle, size_t bytes, const AllocationProperties* properties, unsigned long long) {
    Call call;
    if (call.result) return call.result;
    if (!in_blocks(bytes) || properties->type != 1 || properties->location.type != 1) return INVALID_VALUE;
    if ((properties->handle_types & ~posix_file) != 0) return INVALID_VALUE;
    if (properties->handle_types != 0 && !state().settings.exports_memory) return NOT_SUPPORTED;
    if (properties->location.id < 0 || size_t(properties->location.id) >= state().devices.size()) return INVALID_DEVICE;
    if (forbidden_in_capture("cuMemCreate")) return STREAM_CAPTURE_UNSUPPORTED;
    Device* device = state().devices[size_t(properties->location.id)].get();
    if (!open_memory(device)) return OUT_OF_MEMORY;
    if (const Result result = allocate(device, bytes)) return result;
    for (auto hole = device->file_holes.begin(); hole != device->file_holes.end(); ++hole) {
        const auto [offset, size] = *hole;
        if (size < bytes) continue;
        device->file_holes.erase(hole);
        if (size > bytes) device->file_holes[offset + bytes] = size - bytes;
        std::memset(device->memory + offset, 0xff, bytes);
        *handle = state().next_physical++;
        state().physical[*handle] = {device, device->file, offset, bytes, properties->handle_types != 0};
        state().counts["blocks_created"]++;
        const Prices& prices = state().settings.prices;
        charge("cuMemCreate", prices.create_ns + for_mib(bytes, prices.create_mib_ns));
        return SUCCESS;
    }
    device->used_bytes -= bytes;
    return OUT_OF_MEMORY;
}

CUDA_API cuMemRelease(unsigned long long handle) {
    Call call(true);
    if (call.result) return call.result;
    auto found = state().physical.find(handle);
    if (found == state().physical.end() || found->second.released) return INVALID_VALUE;
    found->second.released = true;
    forget(handle);
    charge("cuMemRelease", state().settings.prices.release_ns);
    return call.device->fault;
}

CUDA_API cuMemMap(Address address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long) {
    Call call;
    if (call.result) return call.result;
    auto found = state().physical.find(handle);
    if (found == state().physical.end() || found->second.released || offset != 0) return INVALID_VALUE;
    Physical& physical = found->second;
    if (address % granularity_bytes != 0 || bytes != physical.bytes || !reserved(address, bytes)) return INVALID_VALUE;
    auto above = state().regions.lower_bound(address);
    if (above != state().regions.end() && above->first < address + bytes) {
        state().violation("memory is mapped where there is some already");
        return INVALID_VALUE;
    }
    // Inaccessible until access is granted.
    void* mapped = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical.file, off_t(physical.offset));
    if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
    physical.mapped++;
    Region region{bytes, physical.device};
    region.physical = handle;
    state().regions[address] = region;
    charge("cuMemMap", state().settings.prices.map_ns);
    return SUCCESS;
}

CUDA_API cuMemSetAccess(Address address, size_t bytes, const Access* access, size_t count) {
    Call call;
    if (call.result) return call.result;
    if (count != 1 || access->location.type != 1 || (access->flags != 0 && access->flags != 1 && access->flags != 3)) return INVALID_VALUE;
    if (access->location.id < 0 || size_t(access->location.id) >= state().devices.size()) return INVALID_DEVICE;
    const Device* user = state().devices[size_t(access->location.id)].get();
    uint64_t pieces = 0;
    for (uint64_t at = address; at < address + bytes; pieces++) {
        auto found = state().regions.find(at);
        if (found == state().regions.end() || found->second.physical == 0) return INVALID_VALUE;
        Region& region = found->second;
        if (region.device != user && state().settings.peer_access != 1) return NOT_SUPPORTED;
        region.readers = access->flags & 1 ? region.readers | user->bit() : region.readers & ~user->bit();
        region.writers = access->flags & 2 ? region.writers | user->bit() : region.writers & ~user->bit();
        const int allowed = (region.readers ? PROT_READ : PROT_NONE) | (region.writers ? PROT_WRITE : PROT_NONE);
        mprotect(reinterpret_cast<void*>(at), region.bytes, allowed);
        at += region.bytes;
    }
    charge_synchronisation(call.device);
    const Prices& prices = state().settings.prices;
    charge("cuMemSetAccess", prices.set_access_ns + pieces * prices.set_access_piece_ns);
    return SUCCESS;
}

CUDA_API cuMemUnmap(Address address, size_t bytes) {
    Call call(true);
    if (call.result) return call.result;
    if (forbidden_in_capture("cuMemUnmap")) return STREAM_CAPTURE_UNSUPPORTED;
    for (uint64_t at = address; at < address + bytes;) {
        auto found = state().regions.find(at);
        if (found == state().regions.end() || found->second.physical == 0) return INVALID_VALUE;
        const Region region = found->second;
        close_off(at, region.bytes);
        state().regions.erase(found);
        state().physical.at(region.physical).mapped--;
        forget(region.physical);
        at += region.bytes;
        charge("cuMemUnmap", state().settings.prices.unmap_ns);
    }
    return call.device->fault;
}

// Open the file of the device's memory again. The file position encodes the block, its length in
// granules, and the device.
CUDA_API cuMemExportToShareableHandle(void* shareable, unsigned long long handle, int type, unsigned long long flags) {
    Call call;
    if (call.result) return call.result;
    auto found = state().physical.find(handle);
    if (found == state().physical.end() || found->second.released || type != posix_file || flags != 0) return INVALID_VALUE;
    const Physical& physical = found->second;
    if (!physical.exportable) return INVALID_VALUE;
    const int file = open(("/proc/self/fd/" + std::to_string(physical.file)).c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return OUT_OF_MEMORY;
    const uint64_t which = physical.offset | physical.bytes / granularity_bytes << 6 | uint64_t(physical.device->ordinal);
    lseek(file, off_t(which), SEEK_SET);
    *static_cast<int*>(shareable) = file;
    state().counts["blocks_exported"]++;
    return SUCCESS;
}

// Unlike in the real driver, the block disappears when the exporting process releases it: programs
// must not rely on a longer lifetime.
CUDA_API cuMemImportFromShareableHandle(unsigned long long* handle, void* shareable, int type) {
    Call call;
    if (call.result) return call.result;
    if (type != posix_file) return INVALID_VALUE;
    const int file = int(reinterpret_cast<intptr_t>(shareable));
    char name[64] = {};
    if (readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), name, sizeof name - 1) < 0) return INVALID_VALUE;
    if (strncmp(name, memory_file, strlen(memory_file)) != 0) return INVALID_VALUE;
    const auto which = uint64_t(lseek(file, 0, SEEK_CUR));
    const uint64_t offset = which / granularity_bytes * granularity_bytes, bytes = (which % granularity_bytes >> 6) * granularity_bytes;
    const size_t ordinal = which & 63;
    if (ordinal >= state().devices.size()) return INVALID_DEVICE;
    // The caller closes its descriptor, so the driver duplicates it.
    const int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return OUT_OF_MEMORY;
    *handle = state().next_physical++;
    Physical physical{state().devices[ordinal].get(), own, offset, bytes};
    physical.imported = true;
    state().physical[*handle] = physical;
    state().counts["blocks_imported"]++;
    return SUCCESS;
}
