#include "function_table.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace hopsml {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kCalled = R_X86_64_JUMP_SLOT, kReferred = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kCalled = R_AARCH64_JUMP_SLOT, kReferred = R_AARCH64_GLOB_DAT;
#else
constexpr uint32_t kCalled = UINT32_MAX, kReferred = UINT32_MAX;
#endif

struct Relocations {
  const ElfW(Rela)* first = nullptr;
  size_t count = 0;
};

/* The parts of a library's dynamic section that are needed. */
class Library {
 public:
  explicit Library(const dl_phdr_info& info) : base_(info.dlpi_addr) {
    const ElfW(Dyn)* dynamic = nullptr;
    for (size_t i = 0; i < info.dlpi_phnum; i++) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
      if (header.p_type == PT_GNU_RELRO) sealed_ = base_ + header.p_vaddr, sealed_end_ = sealed_ + header.p_memsz;
    }
    size_t relative = 0;
    for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; dynamic++) read(*dynamic, &relative);
    /* The relative entries come first and have no name. */
    if (references_.first != nullptr && relative <= references_.count)
      references_ = {references_.first + relative, references_.count - relative};
  }

  /* Returns whether this library calls it. */
  bool replace(const Replacement& replacement) const {
    size_t symbol = find(replacement.name);
    if (symbol == 0) return false;
    bool done = false;
    for (const Relocations& part : {calls_, references_})
      for (size_t i = 0; i < part.count; i++) {
        uint64_t kind = ELF64_R_TYPE(part.first[i].r_info);
        if (ELF64_R_SYM(part.first[i].r_info) == symbol && (kind == kCalled || kind == kReferred))
          done = write(base_ + part.first[i].r_offset, replacement.function) || done;
      }
    return done;
  }

 private:
  void read(const ElfW(Dyn) & entry, size_t* relative) {
    /* Some C libraries leave these as offsets in the file. */
    ElfW(Addr) address = entry.d_un.d_ptr < base_ ? base_ + entry.d_un.d_ptr : entry.d_un.d_ptr;
    switch (entry.d_tag) {
      case DT_SYMTAB: symbols_ = reinterpret_cast<const ElfW(Sym)*>(address); break;
      case DT_STRTAB: names_ = reinterpret_cast<const char*>(address); break;
      case DT_GNU_HASH: defined_from_ = reinterpret_cast<const uint32_t*>(address)[1]; break;
      case DT_JMPREL: calls_.first = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_PLTRELSZ: calls_.count = entry.d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_RELA: references_.first = reinterpret_cast<const ElfW(Rela)*>(address); break;
      case DT_RELASZ: references_.count = entry.d_un.d_val / sizeof(ElfW(Rela)); break;
      case DT_RELACOUNT: *relative = entry.d_un.d_val; break;
      default: break;
    }
  }

  /* Returns the index of an imported function: these come before all that the library defines. 0: there is none. */
  size_t find(const char* name) const {
    if (symbols_ == nullptr || names_ == nullptr) return 0;
    for (size_t i = 1; i < defined_from_; i++)
      if (symbols_[i].st_shndx == SHN_UNDEF && std::strcmp(names_ + symbols_[i].st_name, name) == 0) return i;
    return 0;
  }

  bool write(ElfW(Addr) slot, void* function) const {
    bool is_sealed = slot >= sealed_ && slot < sealed_end_;
    auto page = slot & ~ElfW(Addr)(sysconf(_SC_PAGESIZE) - 1);
    size_t size = slot + sizeof function - page;
    if (is_sealed && mprotect(reinterpret_cast<void*>(page), size, PROT_READ | PROT_WRITE) != 0) return false;
    __atomic_store_n(reinterpret_cast<void**>(slot), function, __ATOMIC_RELEASE);
    if (is_sealed) mprotect(reinterpret_cast<void*>(page), size, PROT_READ);
    return true;
  }

  ElfW(Addr) base_, sealed_ = 0, sealed_end_ = 0;
  const ElfW(Sym)* symbols_ = nullptr;
  const char* names_ = nullptr;
  size_t defined_from_ = 0;
  Relocations calls_, references_;
};

struct Search {
  const std::string& path;
  const std::vector<Replacement>& replacements;
  int libraries = 0;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (std::strncmp(info->dlpi_name, search.path.c_str(), search.path.size()) != 0) return 0;
  Library library(*info);
  bool calls_all = true;
  for (const Replacement& one : search.replacements)
    if (!library.replace(one) && one.is_needed) calls_all = false;
  search.libraries += calls_all ? 1 : 0;
  return 0;
}

}  // namespace

int replace_functions(const std::string& path, const std::vector<Replacement>& replacements) {
  Search search{path, replacements};
  dl_iterate_phdr(visit, &search);
  return search.libraries;
}

}  // namespace hopsml
