#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace emulator {

constexpr size_t guard_bytes = 4096;

#if defined(__x86_64__)

// The System V ABI: the callee preserves rbx, rbp and r12 to r15; the caller saves the rest.
// Control words are never changed.
extern "C" void weir_emulator_switch(Point* from, Point to);
asm(R"(
.text
.hidden weir_emulator_switch
.globl weir_emulator_switch
.type weir_emulator_switch, @function
weir_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size weir_emulator_switch, .-weir_emulator_switch
)");

void switch_to(Point* from, Point to) { weir_emulator_switch(from, to); }

static Point first_point(char* memory, void (*body)()) {
    // As if `body` had been called from address 0: at its start, the stack is 8 off a multiple of
    // 16.
    void** top = reinterpret_cast<void**>(memory + guard_bytes + stack_bytes - 16);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    return top;
}

#else

// Other architectures use the C library, which also saves the signal mask: slower, otherwise
// equivalent. Each point is a `ucontext_t`.
struct Context {
    ucontext_t context;
};

void switch_to(Point* from, Point to) {
    Context here;
    *from = &here;
    swapcontext(&here.context, &static_cast<Context*>(to)->context);
}

static Point first_point(char* memory, void (*body)()) {
    auto* first = new (memory + guard_bytes) Context;
    getcontext(&first->context);
    first->context.uc_stack.ss_sp = memory + guard_bytes + sizeof(Context);
    first->context.uc_stack.ss_size = stack_bytes - sizeof(Context);
    first->context.uc_link = nullptr;
    makecontext(&first->context, body, 0);
    return first;
}

#endif

Fiber::Fiber(void (*body)()) {
    void* mapped = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    memory = static_cast<char*>(mapped);
    mprotect(memory, guard_bytes, PROT_NONE);
#if defined(__SANITIZE_ADDRESS__)
    // The address range may still be poisoned by its previous use.
    __asan_unpoison_memory_region(memory + guard_bytes, stack_bytes);
#endif
    point = first_point(memory, body);
}

Fiber::~Fiber() { munmap(memory, guard_bytes + stack_bytes); }

}  // namespace emulator
