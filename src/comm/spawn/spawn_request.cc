#include "src/comm/spawn/spawn_request.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/rank_environment.h"

namespace lockstep::internal {
namespace {

// Where a function lies; `object` is empty for the executable.
struct Place {
  std::string object;
  std::uintptr_t offset = 0;
};

bool contains(const dl_phdr_info& object, std::uintptr_t address) {
  for (const ElfW(Phdr) & part : std::span(object.dlpi_phdr, object.dlpi_phnum))
    if (part.p_type == PT_LOAD &&
        address - (object.dlpi_addr + part.p_vaddr) < part.p_memsz)
      return true;
  return false;
}

template <class Function>
Place place_of(Function function) {
  const auto address = reinterpret_cast<std::uintptr_t>(function);
  std::pair<std::uintptr_t, Place> search{address, {}};
  const int found = ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& [wanted, place] = *static_cast<decltype(search)*>(data);
        if (!contains(*object, wanted)) return 0;
        place = {object->dlpi_name, wanted - object->dlpi_addr};
        return 1;
      },
      &search);
  if (found == 0)
    throw InvalidArgument("spawn: the function lies in no loaded file");
  return search.second;
}

template <class Function>
Function function_at(const Place& place) {
  std::pair<std::uintptr_t, Place> search{0, place};
  const int found = ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* data) {
        auto& [address, wanted] = *static_cast<decltype(search)*>(data);
        if (wanted.object != object->dlpi_name) return 0;
        address = object->dlpi_addr + wanted.offset;
        return static_cast<int>(contains(*object, address));
      },
      &search);
  if (found == 0)
    throw InvalidArgument(
        fmt::format("spawn: the function is in {}, which this rank has not "
                    "loaded\n  next:    load it before prepare_spawn(), or "
                    "link the program to it",
                    place.object));
  return std::bit_cast<Function>(search.first);
}

void write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw SystemError("spawn: could not store the arguments", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::vector<std::byte> read_all(const FileDescriptor& file) {
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) throw SystemError("spawn: could not read the arguments", errno);
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  // All ranks share the file's position.
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::pread(file.get(), bytes.data() + at,
                                  bytes.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw SystemError("spawn: could not read the arguments", errno);
    at += static_cast<std::size_t>(count);
  }
  return bytes;
}

}  // namespace

FileDescriptor above_standard(FileDescriptor descriptor) {
  if (descriptor.get() > STDERR_FILENO) return descriptor;
  FileDescriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy) throw SystemError("spawn: could not copy a descriptor", errno);
  return copy;
}

FileDescriptor pack(const SpawnRequest& request) {
  const Place entry = place_of(request.call.entry);
  const Place function = place_of(request.call.function);
  ArgumentWriter writer;
  writer.write(entry.object);
  writer.write(entry.offset);
  writer.write(function.object);
  writer.write(function.offset);
  writer.write(request.ranks);
  writer.write(request.grace.count());
  writer.write(request.environment);
  FileDescriptor file(::memfd_create("lockstep-spawn", MFD_CLOEXEC));
  if (!file) throw SystemError("spawn: could not store the arguments", errno);
  file = above_standard(std::move(file));
  write_all(file.get(), writer.bytes);
  write_all(file.get(), request.call.arguments);
  return file;
}

SpawnRequest unpack(const FileDescriptor& file) {
  std::vector<std::byte> bytes = read_all(file);
  ArgumentReader reader(bytes);
  SpawnRequest request;
  Place entry, function;
  entry.object = reader.read<std::string>();
  entry.offset = reader.read<std::uintptr_t>();
  function.object = reader.read<std::string>();
  function.offset = reader.read<std::uintptr_t>();
  request.ranks = reader.read<int>();
  request.grace =
      std::chrono::nanoseconds(reader.read<std::chrono::nanoseconds::rep>());
  request.environment = reader.read<std::vector<std::string>>();
  request.call.entry = function_at<RankEntry>(entry);
  request.call.function = function_at<AnyFunction>(function);
  const auto rest = reader.rest();
  request.call.arguments.assign(rest.begin(), rest.end());
  return request;
}

std::vector<std::string> shared_environment(
    const std::vector<std::string>& inherited, int ranks,
    const std::string& store_url, const std::string& token,
    std::uint16_t master_port) {
  std::vector<std::string> variables;
  bool has_threads = ranks == 1;
  for (const std::string& variable : inherited) {
    if (is_set_per_job(
            std::string_view(variable).substr(0, variable.find('='))))
      continue;
    has_threads |= variable.starts_with("OMP_NUM_THREADS=");
    variables.push_back(variable);
  }
  variables.push_back(fmt::format("WORLD_SIZE={}", ranks));
  variables.push_back(fmt::format("LOCAL_WORLD_SIZE={}", ranks));
  variables.push_back("GROUP_RANK=0");
  variables.push_back("GROUP_WORLD_SIZE=1");
  variables.push_back("MASTER_ADDR=127.0.0.1");
  variables.push_back(fmt::format("MASTER_PORT={}", master_port));
  variables.push_back("LOCKSTEP_STORE=" + store_url);
  variables.push_back("LOCKSTEP_TOKEN=" + token);
  if (!has_threads) variables.push_back("OMP_NUM_THREADS=1");
  return variables;
}

std::vector<std::string> rank_variables(int rank) {
  return {fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank)};
}

}  // namespace lockstep::internal
