// Connection from a fake NVIDIA library to the fake driver beside it. libraries.cpp has the
// driver's side.
#pragma once
#include <dlfcn.h>
#include <stdlib.h>

#include <cstdint>
#include <string>

namespace beside {

struct Driver {
    // Path of the calling library.
    std::string path;
    int (*context)();
    int (*may_allocate)(const char*);
    int (*enqueue)(void*, const char*, int (*)(void*, void*), void*, void (*)(void*));
    int (*covers)(void*, uint64_t, uint64_t);
    void (*violation)(const char*);
    void (*holds)(int);
    int (*take)(void**, uint64_t*);
    void (*give)(void*, uint64_t);
    void (*counted)(const char*);
    uint64_t (*setting)(const char*);

    // Major version in the library's file name.
    int named() const { return atoi(path.c_str() + path.rfind('.') + 1); }
};

template <class F>
void look_up(void* library, const char* name, F& to) {
    to = reinterpret_cast<F>(dlsym(library, name));
    if (to == nullptr) abort();
}

// A process may have several drivers, each with its libraries beside it.
static const Driver& driver() {
    static const Driver found = [] {
        Dl_info own = {};
        dladdr(reinterpret_cast<void*>(&driver), &own);
        Driver driver = {};
        driver.path = own.dli_fname;
        const std::string beside = driver.path.substr(0, driver.path.rfind('/') + 1) + "libcuda.so.1";
        void* library = dlopen(beside.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (library == nullptr) abort();
        look_up(library, "fakecuda_context", driver.context);
        look_up(library, "fakecuda_may_allocate", driver.may_allocate);
        look_up(library, "fakecuda_enqueue", driver.enqueue);
        look_up(library, "fakecuda_covers", driver.covers);
        look_up(library, "fakecuda_violation", driver.violation);
        look_up(library, "fakecuda_library_holds", driver.holds);
        look_up(library, "fakecuda_library_take", driver.take);
        look_up(library, "fakecuda_library_give", driver.give);
        look_up(library, "fakecuda_counted", driver.counted);
        look_up(library, "fakecuda_library_setting", driver.setting);
        return driver;
    }();
    return found;
}

}  // namespace beside
