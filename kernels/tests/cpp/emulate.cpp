// Reads launches from its standard input, runs them, and writes the contents of their buffers to
// its standard output, until the input ends. src/emulator.rs is the client. Each buffer is a
// separate allocation of its exact size.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "launch.h"

namespace {

void give_up(const char* why) {
    std::fprintf(stderr, "emulate: %s\n", why);
    std::exit(2);
}

// Read `bytes` bytes. Returns false at the end of the input.
bool read_bytes(void* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = read(STDIN_FILENO, static_cast<char*>(to) + done, bytes - done);
        if (got == 0 && done == 0) return false;
        if (got <= 0) give_up("the input ends in the middle");
        done += static_cast<size_t>(got);
    }
    return true;
}

void write_bytes(const void* from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = write(STDOUT_FILENO, static_cast<const char*>(from) + done, bytes - done);
        if (put <= 0) give_up("nobody reads the output");
        done += static_cast<size_t>(put);
    }
}

template <class T>
T number() {
    T value;
    if (!read_bytes(&value, sizeof value)) give_up("the input ends in the middle");
    return value;
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
struct Buffer {
    std::unique_ptr<void, Free> memory;
    size_t bytes;
};

std::string launch(std::vector<Buffer>& buffers, const emulator::Options& options) {
    std::string name(number<uint32_t>(), '\0');
    read_bytes(name.data(), name.size());
    uint32_t sizes[7];
    read_bytes(sizes, sizeof sizes);
    std::vector<std::vector<char>> arguments(number<uint32_t>());
    for (std::vector<char>& argument : arguments) {
        const uint32_t buffer = number<uint32_t>();
        if (buffer < buffers.size()) {
            const void* address = buffers[buffer].memory.get();
            argument.assign(reinterpret_cast<const char*>(&address), reinterpret_cast<const char*>(&address + 1));
        } else {
            argument.resize(number<uint32_t>());
            read_bytes(argument.data(), argument.size());
        }
    }
    const emulator::Kernel* kernel = emulator::find(name);
    if (kernel == nullptr) return "there is no kernel " + name;
    if (kernel->parameter_bytes.size() != arguments.size())
        return name + " takes " + std::to_string(kernel->parameter_bytes.size()) + " arguments, not " + std::to_string(arguments.size());
    std::vector<void*> parameters;
    for (size_t i = 0; i < arguments.size(); i++) {
        if (kernel->parameter_bytes[i] != arguments[i].size())
            return name + ": argument " + std::to_string(i) + " is of " + std::to_string(kernel->parameter_bytes[i]) + " bytes, not " +
                   std::to_string(arguments[i].size());
        parameters.push_back(arguments[i].data());
    }
    return emulator::launch(*kernel, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, sizes[6], parameters.data(), options);
}

}  // namespace

int main(int count, char** words) {
    if (count == 2 && std::string(words[1]) == "--names") {
        for (const std::string& name : emulator::names()) std::puts(name.c_str());
        return 0;
    }
    for (uint32_t order; read_bytes(&order, sizeof order);) {
        emulator::Options options;
        options.order = order;
        options.workers = number<uint32_t>();
        std::vector<Buffer> buffers(number<uint32_t>());
        for (Buffer& buffer : buffers) {
            buffer.bytes = number<uint64_t>();
            void* memory = nullptr;
            if (posix_memalign(&memory, 256, buffer.bytes) != 0) give_up("out of memory");
            buffer.memory.reset(memory);
            if (buffer.bytes > 0) read_bytes(memory, buffer.bytes);
        }
        const uint32_t launches = number<uint32_t>();
        std::string fault;
        for (uint32_t i = 0; i < launches; i++) {
            const std::string said = launch(buffers, options);
            if (fault.empty()) fault = said;
        }
        const uint32_t length = static_cast<uint32_t>(fault.size());
        write_bytes(&length, sizeof length);
        write_bytes(fault.data(), fault.size());
        for (const Buffer& buffer : buffers) write_bytes(buffer.memory.get(), buffer.bytes);
    }
}
