#include "block.h"

#include <cstring>
#include <utility>

namespace emulator {

thread_local Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;

void Block::prepare(const Kernel& of, Dim3 in, Dim3 size, size_t shared_bytes, void** with, uint32_t in_order) {
    kernel = &of;
    parameters = with;
    order = in_order;
    grid = in;
    dimensions = size;
    variables.clear();
    static_bytes = 0;
    // A separate allocation, so that AddressSanitizer detects accesses past its end.
    dynamic.reset(new char[shared_bytes]);
    dynamic_bytes = shared_bytes;
    fault.clear();

    const unsigned count = size.x * size.y * size.z;
    threads.resize(count);
    warps.resize((count + warp_lanes - 1) / warp_lanes);
    turns.resize(count);
    for (unsigned i = 0; i < count; i++) {
        Thread& thread = threads[i];
        thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
        thread.number = i;
        thread.lane = i % warp_lanes;
        thread.warp = &warps[i / warp_lanes];
        thread.block = this;
        turns[i] = order == 1 ? count - 1 - i : i;
    }
    if (order < 2) return;
    uint32_t seed = order * 2654435761u;
    for (unsigned i = count - 1; i > 0; i--) {
        seed = seed * 1664525u + 1013904223u;
        std::swap(turns[i], turns[(seed >> 8) % (i + 1)]);
    }
}

bool Block::run(Dim3 which) {
    index = which;
    std::memset(dynamic.get(), poison(), dynamic_bytes);
    for (Variable& variable : variables) std::memset(variable.memory.get(), poison(), variable.bytes);
    for (Warp& warp : warps) warp.alive = warp.arrived = warp.whole = 0;
    for (Thread& thread : threads) {
        thread.state = Thread::State::ready;
        thread.variables = 0;
        thread.copies.clear();
        thread.group = 0;
        thread.warp->alive |= 1u << thread.lane;
        thread.warp->whole |= 1u << thread.lane;
    }
    alive = static_cast<unsigned>(threads.size());
    arrived = 0;
    begin_threads();
    resume_threads();
    current = nullptr;
    if (fault.empty()) return true;
    // The threads stopped in the middle of the kernel.
    idle.clear();
    fibers.clear();
    return false;
}

void Block::begin_threads() {
    for (turn = 0; turn < turns.size() && fault.empty();) {
        if (idle.empty()) {
            fibers.push_back(std::make_unique<Fiber>(&Block::run_threads));
            idle.push_back(fibers.back().get());
        }
        Fiber* fiber = idle.back();
        idle.pop_back();
        current = &threads[turns[turn]];
        current->fiber = fiber;
        switch_to(&scheduler, fiber->point);
        // Control returns here when a thread waits, which keeps its fiber, or when every thread has
        // begun.
        if (turn < turns.size()) turn++;
    }
}

void Block::run_threads() {
    for (;;) {
        Fiber* fiber = current->fiber;
        Block& block = *current->block;
        do {
            block.kernel->invoke(block.parameters);
            block.end(*current);
            // A thread that waited ends in a later round, in which all threads have begun.
            if (block.turn >= block.turns.size() || ++block.turn >= block.turns.size()) break;
            current = &block.threads[block.turns[block.turn]];
            current->fiber = fiber;
        } while (true);
        block.idle.push_back(fiber);
        switch_to(&fiber->point, block.scheduler);
    }
}

void Block::resume_threads() {
    while (alive > 0 && fault.empty()) {
        bool progress = false;
        for (size_t i = 0; i < turns.size() && fault.empty(); i++) {
            Thread& thread = threads[turns[i]];
            if (thread.state != Thread::State::ready) continue;
            progress = true;
            current = &thread;
            switch_to(&scheduler, thread.fiber->point);
        }
        if (progress || !fault.empty()) continue;
        fault = "threads of a block wait for others that do not come";
        if (arrived > 0) fault += std::string(": some at the barrier ") + barrier_site;
        for (const Warp& warp : warps)
            if (warp.arrived != 0) {
                fault += std::string(", some at the warp's ") + warp.site;
                break;
            }
    }
}

void Block::pause() {
    Thread& self = *current;
    self.state = Thread::State::waiting;
    switch_to(&self.fiber->point, scheduler);
}

void Block::end(Thread& thread) {
    thread.state = Thread::State::ended;
    alive--;
    Warp& warp = *thread.warp;
    warp.alive &= ~(1u << thread.lane);
    if (warp.arrived != 0 && warp.arrived == warp.alive)
        fail(std::string("a lane ended while others of its warp wait for it at ") + warp.site);
    if (arrived > 0 && arrived == alive) release_barrier();
}

void Block::sync_threads(const char* site) {
    if (arrived > 0 && barrier_site != site && std::strcmp(barrier_site, site) != 0)
        fail(std::string("threads of a block wait at different barriers: ") + barrier_site + " and " + site);
    barrier_site = site;
    if (++arrived == alive) return release_barrier();
    pause();
}

void Block::release_barrier() {
    arrived = 0;
    // All threads have arrived at the barrier, so every waiting thread waits there, and none for
    // its warp.
    for (Thread& thread : threads)
        if (thread.state == Thread::State::waiting) thread.state = Thread::State::ready;
}

void Block::arrive(Warp& warp, const char* site, void* operands) {
    if (warp.alive != warp.whole) fail(std::string("lanes of a warp have ended before the others came to ") + site);
    if (warp.arrived != 0 && warp.site != site && std::strcmp(warp.site, site) != 0)
        fail(std::string("lanes of a warp do different things together: ") + warp.site + " and " + site);
    warp.site = site;
    warp.operands[current->lane] = operands;
    warp.arrived |= 1u << current->lane;
}

void Block::release(Warp& warp) {
    warp.arrived = 0;
    const size_t first = static_cast<size_t>(&warp - warps.data()) * warp_lanes;
    for (size_t i = first; i < first + warp_lanes && i < threads.size(); i++)
        if (threads[i].state == Thread::State::waiting) threads[i].state = Thread::State::ready;
}

void* Block::variable(size_t bytes) {
    const unsigned which = current->variables++;
    if (which == variables.size()) {
        static_bytes += bytes;
        if (static_bytes > static_shared_bytes_max)
            fail("the kernel declares more than " + std::to_string(static_shared_bytes_max) + " bytes of shared memory");
        variables.push_back({std::unique_ptr<char[]>(new char[bytes]), bytes});
        std::memset(variables.back().memory.get(), poison(), bytes);
    }
    if (variables[which].bytes != bytes) fail("threads of a block come past different shared variables");
    return variables[which].memory.get();
}

void Block::fail(const std::string& what) {
    if (fault.empty()) fault = what;
    Point nowhere;
    switch_to(&nowhere, scheduler);
    __builtin_unreachable();
}

void finish_copies(uint32_t groups_left) {
    Thread& self = *current;
    size_t done = 0;
    for (; done < self.copies.size(); done++) {
        const PendingCopy& copy = self.copies[done];
        if (copy.group + groups_left >= self.group) break;
        if (copy.from != nullptr)
            std::memcpy(copy.to, copy.from, copy.bytes);
        else
            std::memset(copy.to, 0, copy.bytes);
    }
    self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace emulator
