// One block of threads. Threads are fibers that run one at a time, each until it waits for others: at a barrier of the block, or at an
// instruction that its warp does together. The last to come does the work and wakes the others.
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

// What the lanes of a warp that have come to an instruction brought with them.
struct Warp {
    // Lanes that have not ended.
    uint32_t alive = 0;
    // Lanes that have begun: all but in a last warp that is not full.
    uint32_t whole = 0;
    uint32_t arrived = 0;
    // The instruction that they have come to.
    const char* site = nullptr;
    void* operands[warp_lanes] = {};
};

// A copy to shared memory that has been asked for. It is made as late as the kernel allows: a wait that is missing shows.
struct PendingCopy {
    void* to;
    // Null: zeroes.
    const void* from;
    uint32_t bytes;
    uint32_t group;
};

struct Thread {
    enum class State : uint8_t { ready, waiting, ended };

    // threadIdx, and the thread's place in its block and warp.
    Dim3 index;
    unsigned number = 0, lane = 0;
    State state = State::ready;
    Warp* warp = nullptr;
    Block* block = nullptr;
    // The fiber that it began on and cannot leave.
    Fiber* fiber = nullptr;
    // How many shared variables it has come past.
    unsigned variables = 0;
    // Asynchronous copies, oldest first, and the group that the next one belongs to.
    std::vector<PendingCopy> copies;
    uint32_t group = 0;
};

// The thread that runs now, on this thread of the process.
#ifndef EMULATOR_MODULE
extern thread_local Thread* current __attribute__((tls_model("initial-exec")));
#else
// In a library by itself, which is loaded later than the emulator and has no room among what a process has from its start.
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

    // Get ready for blocks of one launch.
    void prepare(const Kernel& kernel, Dim3 grid, Dim3 dimensions, size_t shared_bytes, void** parameters, uint32_t order);
    // Run the block `index` of it. Gives whether all went well; `fault` says what did not.
    bool run(Dim3 index);

    // The current thread waits for all others of its block.
    void sync_threads(const char* site);
    // The current thread's warp does something together, at `site`: the last of its lanes calls `complete` with the operands of all.
    template <class F>
    void together(const char* site, void* operands, F complete) {
        Warp& warp = *current->warp;
        arrive(warp, site, operands);
        if (warp.arrived != warp.alive) return pause();
        complete(warp);
        release(warp);
    }
    // The shared variable that the current thread comes past, the same for all threads of the block.
    void* variable(size_t bytes);
    // Something that the kernel must not do. Does not return.
    [[noreturn]] void fail(const std::string& what);

    std::string fault;

  private:
    struct Variable {
        std::unique_ptr<char[]> memory;
        size_t bytes;
    };

    // The body of every fiber: runs threads that have not begun until there are none, or one of them waits.
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
    // The order that threads run in, and how far the first round of it has come.
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

// Copies of the current thread in the oldest groups, all but the last `groups_left`, are made now.
void finish_copies(uint32_t groups_left);

}  // namespace emulator
