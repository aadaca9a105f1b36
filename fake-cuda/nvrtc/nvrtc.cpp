// A libnvrtc for tests. It compiles for the CPU, with the compiler that built the fake driver and
// the emulator's definitions of CUDA's extensions. Its output names a library that the fake driver
// opens. Functions that Weir does not call are missing.
//
// build.rs defines COMPILER, FLAGS, INCLUDES and FOLDER. The folder caches compiled libraries, by a
// hash of their input.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "beside.h"

#define NVRTC_API extern "C" __attribute__((visibility("default"))) Result

using Result = int;
enum : Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

using beside::driver;

namespace {

struct Program {
    std::string text;
    std::vector<std::pair<std::string, std::string>> headers;
    std::string log, ptx, cubin;
};

std::vector<int> architectures() {
    const uint64_t newest = driver().setting("nvrtc_newest");
    std::vector<int> known;
    for (const int architecture : {75, 80, 86, 89, 90})
        if (newest == 0 || architecture <= int(newest)) known.push_back(architecture);
    return known;
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// The library of a source, from the cache or newly compiled. Empty, with a log, if the source does
// not compile.
std::string library(Program& program) {
    std::string all;
    // With lengths, so that different programs have different keys.
    const auto add = [&all](const std::string& part) { all += std::to_string(part.size()) + ":" + part; };
    add(program.text);
    for (const auto& [name, text] : program.headers) add(name), add(text);
    const std::string path = std::string(FOLDER "/") + std::to_string(std::hash<std::string>{}(all)) + ".so";
    if (access(path.c_str(), R_OK) == 0) return path;
    std::string folder = FOLDER "/compilation-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) {
        program.log = "no folder to compile in";
        return {};
    }
    for (const auto& [name, text] : program.headers) write(folder + "/" + name, text);
    write(folder + "/source.cpp", "#include \"module.h\"\n" + program.text);
    // Processes that hold devices have no PATH in their environment.
    const std::string command = "cd '" + folder + "' && PATH=\"$PATH:/usr/local/bin:/usr/bin:/bin\" " COMPILER " " FLAGS " -I. " INCLUDES
                                " -shared -o module.so source.cpp -lm > log 2>&1";
    const bool compiled = system(command.c_str()) == 0;
    program.log = read(folder + "/log");
    // Concurrent compilations of one source produce the same library, so the last rename wins.
    if (compiled) rename((folder + "/module.so").c_str(), path.c_str());
    (void)!system(("rm -r '" + folder + "'").c_str());
    return compiled ? path : std::string();
}

Result give(const std::string& from, char* to) {
    memcpy(to, from.data(), from.size());
    return SUCCESS;
}

}  // namespace

NVRTC_API nvrtcVersion(int* major, int* minor) {
    *major = driver().named();
    *minor = *major == 12 ? 4 : 0;
    return SUCCESS;
}

NVRTC_API nvrtcGetNumSupportedArchs(int* count) {
    *count = int(architectures().size());
    return SUCCESS;
}

NVRTC_API nvrtcGetSupportedArchs(int* to) {
    for (const int architecture : architectures()) *to++ = architecture;
    return SUCCESS;
}

NVRTC_API nvrtcCreateProgram(Program** program, const char* text, const char*, int headers, const char* const* texts, const char* const* names) {
    if (program == nullptr || text == nullptr || headers < 0) return INVALID_INPUT;
    *program = new Program{text, {}, {}, {}, {}};
    for (int i = 0; i < headers; i++) (*program)->headers.emplace_back(names[i], texts[i]);
    driver().holds(1);
    return SUCCESS;
}

NVRTC_API nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    if (program == nullptr) return INVALID_PROGRAM;
    driver().counted("nvrtcCompileProgram");
    int real = 0, portable = 0;
    bool apart = false;
    for (int i = 0; i < count; i++) {
        if (sscanf(options[i], "--gpu-architecture=sm_%d", &real) == 1) continue;
        if (sscanf(options[i], "--gpu-architecture=compute_%d", &portable) == 1) continue;
        if (strcmp(options[i], "--fmad=false") == 0) apart = true;
        else if (strcmp(options[i], "--std=c++17") != 0) return INVALID_OPTION;
    }
    bool known = false;
    for (const int architecture : architectures()) known |= architecture == (real ? real : portable);
    if (!known) {
        program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
        return INVALID_OPTION;
    }
    if (!apart) driver().violation("nvrtcCompileProgram may join products and sums, which the interpreter has apart");
    if (driver().setting("nvrtc_fails")) {
        program->log = "chain.cu(1): error: it fails as it was told to\n";
        return COMPILATION;
    }
    const std::string made = library(*program);
    if (made.empty()) return COMPILATION;
    // With the terminating zero of the string.
    if (real) program->cubin = "\177ELF fake library " + made + '\n' + '\0';
    const std::string head = driver().named() == 12 ? ".version 8.4\n" : ".version 9.0\n";
    program->ptx = head + ".target sm_" + std::to_string(real ? real : portable) + "\n// fake library " + made + '\n' + '\0';
    return SUCCESS;
}

NVRTC_API nvrtcGetPTXSize(Program* program, size_t* bytes) {
    *bytes = program->ptx.size();
    return SUCCESS;
}
NVRTC_API nvrtcGetPTX(Program* program, char* to) { return give(program->ptx, to); }
NVRTC_API nvrtcGetCUBINSize(Program* program, size_t* bytes) {
    *bytes = program->cubin.size();
    return SUCCESS;
}
NVRTC_API nvrtcGetCUBIN(Program* program, char* to) { return give(program->cubin, to); }
NVRTC_API nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    *bytes = program->log.size() + 1;
    return SUCCESS;
}
NVRTC_API nvrtcGetProgramLog(Program* program, char* to) { return give(program->log + '\0', to); }

NVRTC_API nvrtcDestroyProgram(Program** program) {
    if (program == nullptr || *program == nullptr) return INVALID_PROGRAM;
    delete *program;
    *program = nullptr;
    driver().holds(-1);
    return SUCCESS;
}
