#include "lockstep/net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Which memfds this process has mapped, by device and inode. What a process
// has mapped is a property of the process, hence the one global here.
struct MappingTable {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<SharedMapping>> mappings;
};

MappingTable& mapping_table() {
  static MappingTable& table = *new MappingTable;  // outlives static users
  return table;
}

// Past the limit on files' sizes the kernel sends SIGXFSZ, which would end the
// program: so that limit is looked at first.
void size_memory(const FileDescriptor& memory, std::size_t bytes) {
  rlimit limit{};
  const bool too_large =
      ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur;
  if (!too_large && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0)
    return;
  throw SystemError("could not size a memfd to " + std::to_string(bytes) +
                        " bytes (see `ulimit -f`)",
                    too_large ? EFBIG : errno);
}

}  // namespace

FileDescriptor create_shared_memory(const std::string& name,
                                    std::size_t bytes) {
  FileDescriptor memory(
      ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) throw SystemError("could not create a memfd", errno);
  size_memory(memory, bytes);
  if (::fcntl(memory.get(), F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw SystemError("could not seal a memfd", errno);
  return memory;
}

SharedMapping::~SharedMapping() { ::munmap(data_, bytes_); }

std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor) {
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0)
    throw SystemError("could not examine shared memory", errno);
  MappingTable& table = mapping_table();
  std::lock_guard lock(table.mutex);
  auto& slot = table.mappings[{info.st_dev, info.st_ino}];
  if (auto existing = slot.lock()) return existing;
  std::erase_if(table.mappings, [&](const auto& entry) {
    return entry.second.expired() && &entry.second != &slot;
  });
  const auto bytes = static_cast<std::size_t>(info.st_size);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_NORESERVE, descriptor.get(), 0);
  if (address == MAP_FAILED)
    throw SystemError("could not map " + std::to_string(bytes) +
                          " bytes of shared memory (see `ulimit -v`)",
                      errno);
  ::madvise(address, bytes, MADV_DONTDUMP);
  auto mapping =
      std::make_shared<SharedMapping>(static_cast<std::byte*>(address), bytes);
  slot = mapping;
  return mapping;
}

}  // namespace lockstep
