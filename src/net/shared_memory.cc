#include "src/net/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The memfds that this process has mapped, by device, inode and offset.
// Mappings are a property of the process, hence the global.
struct MappingTable {
  using Key = std::tuple<dev_t, ino_t, std::size_t>;
  std::mutex mutex;
  std::map<Key, std::weak_ptr<SharedMapping>> mappings;
};

MappingTable& mapping_table() {
  static MappingTable& table = *new MappingTable;  // outlives static users
  return table;
}

// Beyond the limit on file sizes the kernel sends SIGXFSZ, which ends the
// program, so this function checks the limit first.
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

// Not executable: with vm.memfd_noexec=2 the kernel refuses other memfds.
// Before Linux 6.3 the kernel does not know the flag.
FileDescriptor create_memfd(const std::string& name) {
  constexpr unsigned kNotExecutable = 8;  // MFD_NOEXEC_SEAL
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor memory(::memfd_create(name.c_str(), kFlags | kNotExecutable));
  if (!memory && errno == EINVAL)
    memory = FileDescriptor(::memfd_create(name.c_str(), kFlags));
  return memory;
}

FileDescriptor create_sealed_memory(const std::string& name, std::size_t bytes,
                                    int seals) {
  FileDescriptor memory = create_memfd(name);
  if (!memory) throw SystemError("could not create a memfd", errno);
  size_memory(memory, bytes);
  if (::fcntl(memory.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
    throw SystemError("could not seal a memfd", errno);
  return memory;
}

struct stat examine(const FileDescriptor& memory) {
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0)
    throw SystemError("could not examine shared memory", errno);
  return info;
}

bool holds(const FileDescriptor& memory, std::size_t bytes) {
  return static_cast<std::size_t>(examine(memory).st_size) >= bytes;
}

}  // namespace

FileDescriptor create_shared_memory(const std::string& name,
                                    std::size_t bytes) {
  return create_sealed_memory(name, bytes, F_SEAL_SHRINK | F_SEAL_GROW);
}

FileDescriptor create_growing_memory(const std::string& name,
                                     std::size_t bytes) {
  return create_sealed_memory(name, bytes, F_SEAL_SHRINK);
}

// Another process may have grown the memfd further. The seal then makes the
// kernel refuse to shrink it, and its size suffices.
void grow_shared_memory(const FileDescriptor& memory, std::size_t bytes) {
  if (holds(memory, bytes)) return;
  try {
    size_memory(memory, bytes);
  } catch (const SystemError&) {
    if (!holds(memory, bytes)) throw;
  }
}

SharedMapping::~SharedMapping() { ::munmap(data_, bytes_); }

std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor) {
  return map_shared_memory(
      descriptor, 0, static_cast<std::size_t>(examine(descriptor).st_size));
}

std::shared_ptr<SharedMapping> map_shared_memory(
    const FileDescriptor& descriptor, std::size_t offset, std::size_t bytes) {
  const struct stat info = examine(descriptor);
  MappingTable& table = mapping_table();
  std::lock_guard lock(table.mutex);
  auto& slot = table.mappings[{info.st_dev, info.st_ino, offset}];
  if (auto existing = slot.lock()) return existing;
  std::erase_if(table.mappings, [&](const auto& entry) {
    return entry.second.expired() && &entry.second != &slot;
  });
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
             descriptor.get(), static_cast<off_t>(offset));
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
