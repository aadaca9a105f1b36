// Machine code as NVIDIA's assembler writes it: an ELF file whose header names the target device,
// and whose symbols are the kernels.
#include <elf.h>

#include <cstring>

#include "fake.h"

namespace fake {

// Drivers of CUDA 12.8 and newer load this format of the file; older drivers load only the earlier
// formats.
constexpr unsigned NEWER_FORMAT = 8;
constexpr int NEWER_FORMAT_SINCE = 12080;
// EM_CUDA; and the symbol flag STO_CUDA_ENTRY, which marks a kernel rather than a device function.
constexpr unsigned CUDA_MACHINE = 190, CUDA_ENTRY = 0x10;

bool is_cubin(const char* image) {
    Elf64_Ehdr header;
    if (memcmp(image, ELFMAG, SELFMAG) != 0) return false;
    memcpy(&header, image, sizeof header);
    return header.e_machine == CUDA_MACHINE;
}

Result load_cubin(const char* image, std::set<std::string>& entries) {
    const Settings& settings = state().settings;
    if (settings.cubin_refusal != SUCCESS) return settings.cubin_refusal;
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    const bool is_newer = header.e_ident[EI_ABIVERSION] >= NEWER_FORMAT;
    if (is_newer && settings.driver_version < NEWER_FORMAT_SINCE) return INVALID_IMAGE;
    const unsigned sm = header.e_flags >> (is_newer ? 8 : 0) & 0xff;
    if (sm / 10 != settings.sm / 10 || sm > settings.sm) return NO_BINARY_FOR_GPU;

    std::vector<Elf64_Shdr> sections(header.e_shnum);
    memcpy(sections.data(), image + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr& section : sections) {
        if (section.sh_type != SHT_SYMTAB) continue;
        const char* names = image + sections[section.sh_link].sh_offset;
        for (size_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); i++) {
            Elf64_Sym symbol;
            memcpy(&symbol, image + section.sh_offset + i * sizeof symbol, sizeof symbol);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_other & CUDA_ENTRY) entries.insert(names + symbol.st_name);
        }
    }
    return SUCCESS;
}

}  // namespace fake
