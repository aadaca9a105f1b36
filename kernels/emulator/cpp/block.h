// One block of threads. Threads are fibers that run one at a time, each until it waits for others:
// at a barrier of the block, or at an instruction that the warp executes together. The last thread
// to arrive does the work and wakes the others.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "launch.h"

namespace emulator {

class Block;

constexpr unsigned warp_lanes = 32;

// Operands of the lanes of a warp that have arrived at an instruction.
struct Warp {
    // Lanes that have not ended.
    uint32_t alive = 0;
    // Lanes that exist: all lanes, except in a last warp that is not full.
    uint32_t whole = 0;
    uint32_t arrived = 0;
    // The instruction at which the lanes have arrived.
    const char* site = nullptr;
    void* operands[warp_lanes] = {};
};

// A pending copy to shared memory. It is executed as late as the kernel allows, so that a missing
// wait changes the result.
struct PendingCopy {
    void* to;
    // Null: zeroes.
    const void* from;
    uint32_t bytes;
    uint32_t group;
};

struct Thread {
    enum class State : uint8_t { ready, waiting, ended };

    // threadIdx, and the thread's index in its block and in its warp.
    Dim3 index;
    unsigned number = 0, lane = 0;
    State state = State::ready;
    Warp* warp = nullptr;
    Block* block = nullptr;
    // Fiber that the thread began on and cannot leave.
    Fiber* fiber = nullptr;
    // Number of shared variables that the thread has passed.
    unsigned variables = 0;
    // Asynchronous copies, oldest first, and the group of the next copy.
    std::vector<PendingCopy> copies;
    uint32_t group = 0;
};

// The emulated thread that runs now on this thread of the process.
#ifndef EMULATOR_MODULE
extern thread_local Thread* current __attribute__((tls_model("initial-exec")));
#else
// A separate library is loaded after the emulator, when static thread-local storage may be full.
extern thread_local Thread* current;
#endif

class Block {
  public:
    Block() = default;
    ~Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    // blockIdx, blockDim and gridDim.
    Dim3 index, dimensions, grid;
    // Dynamic shared memory.
    void* dynamic_shared() { return dynamic.get(); }

    // Prepare for the blocks of one launch.
    void prepare(const Kernel& kernel, Dim3 grid, Dim3 dimensions, size_t shared_bytes, void** parameters, uint32_t order);
    // Run the block `index`. Returns whether it succeeded; otherwise, `fault` has the reason.
    bool run(Dim3 index);

    // Make the current thread wait for all others of its block.
    void sync_threads(const char* site);
    // Execute an instruction of the current thread's warp at `site`: the last lane to arrive calls
    // `complete` with the operands of all lanes.
    template <class F>
    void together(const char* site, void* operands, F complete) {
        Warp& warp = *current->warp;
        arrive(warp, site, operands);
        if (warp.arrived != warp.alive) return pause();
        complete(warp);
        release(warp);
    }
    // The shared variable that the current thread passes, the same for all threads of the block.
    void* variable(size_t bytes);
    // Report an error of the kernel. Does not return.
    [[noreturn]] void fail(const std::string& what);

    std::string fault;

  private:
    struct Variable {
        std::unique_ptr<char[]> memory;
        size_t bytes;
    };

    // The body of every fiber: begins threads until none is left, or one of them waits.
    static void run_threads();
    void begin_threads();
    void resume_threads();
    void end(Thread& thread);
    void arrive(Warp& warp, const char* site, void* operands);
    void release(Warp& warp);
    void release_barrier();
    // Let others run until the current thread is woken.
    void pause();
    uint8_t poison() const { return order % 2 ? 0xff : 0x7f; }

    const Kernel* kernel = nullptr;
    void** parameters = nullptr;
    uint32_t order = 0;

    std::vector<Thread> threads;
    std::vector<Warp> warps;
    // The order in which threads run, and the progress of the first round.
    std::vector<unsigned> turns;
    size_t turn = 0;
    unsigned alive = 0, arrived = 0;
    const char* barrier_site = nullptr;

    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> idle;
    Point scheduler = nullptr;

    std::vector<Variable> variables;
    std::unique_ptr<char[]> dynamic;
    size_t dynamic_bytes = 0, static_bytes = 0;
};

// Execute the current thread's copies of the oldest groups, except for the last `groups_left`
// groups.
void finish_copies(uint32_t groups_left);

}  // namespace emulator
