// The table of kernels, and the launch of a kernel.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "block.h"
#include "register.h"

namespace emulator {

// Filled before main, by the modules' registrations.
static std::map<std::string, Kernel>& table() {
    static std::map<std::string, Kernel> kernels;
    return kernels;
}

Registration::Registration(Kernel kernel) { table().emplace(kernel.name, std::move(kernel)); }

const Kernel* find(const std::string& name) {
    const auto found = table().find(name);
    return found == table().end() ? nullptr : &found->second;
}

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& entry : table()) all.push_back(entry.first);
    return all;
}

// Idle blocks for reuse: the pages of their stacks are resident.
class Pool {
  public:
    std::unique_ptr<Block> take() {
        std::lock_guard<std::mutex> lock(mutex);
        if (blocks.empty()) return std::make_unique<Block>();
        std::unique_ptr<Block> block = std::move(blocks.back());
        blocks.pop_back();
        return block;
    }
    void put(std::unique_ptr<Block> block) {
        std::lock_guard<std::mutex> lock(mutex);
        blocks.push_back(std::move(block));
    }

  private:
    std::mutex mutex;
    std::vector<std::unique_ptr<Block>> blocks;
};

static std::string refuse(const Kernel& kernel, Dim3 grid, Dim3 block, size_t shared_bytes) {
    const uint64_t threads = uint64_t(block.x) * block.y * block.z;
    const std::string name = std::string(kernel.name) + ": ";
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0) return name + "a launch of nothing";
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return name + "the grid is past the device's limits";
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads > kernel.threads_max)
        return name + std::to_string(threads) + " threads in a block are more than its launch bounds of " + std::to_string(kernel.threads_max);
    if (shared_bytes > dynamic_shared_bytes_max) return name + "more shared memory than a device has";
    return {};
}

std::string launch(const Kernel& kernel, Dim3 grid, Dim3 size, size_t shared_bytes, void** parameters, const Options& options) {
    std::string fault = refuse(kernel, grid, size, shared_bytes);
    if (!fault.empty()) return fault;

    static Pool pool;
    const uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
    std::atomic<uint64_t> next{0};
    std::mutex fault_mutex;
    const auto work = [&] {
        std::unique_ptr<Block> block = pool.take();
        block->prepare(kernel, grid, size, shared_bytes, parameters, options.order);
        for (uint64_t i; (i = next.fetch_add(1)) < count;) {
            const uint64_t at = options.order % 2 ? count - 1 - i : i;
            const Dim3 index{unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
            if (block->run(index)) continue;
            std::lock_guard<std::mutex> lock(fault_mutex);
            fault = std::string(kernel.name) + ": " + block->fault;
            next = count;
        }
        pool.put(std::move(block));
    };

    std::vector<std::thread> others;
    // Starting a thread takes as long as running a few blocks.
    const uint64_t workers = std::min<uint64_t>(options.workers, count / 4);
    for (uint64_t i = 1; i < workers; i++) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    return fault;
}

}  // namespace emulator
