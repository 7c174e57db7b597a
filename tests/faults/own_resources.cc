#include "own_resources.h"

#include <fstream>
#include <thread>

#include "src/base/testing/own_resources.h"

namespace lockstep {
namespace {

bool is_shared(const std::string& mapping) {
  const bool shared = mapping.find(" rw-s ") != std::string::npos;
  return shared && (mapping.find("/memfd:") != std::string::npos ||
                    mapping.find(" /dev/shm/") != std::string::npos);
}

std::string surplus(std::size_t now, std::size_t earlier, const char* what) {
  if (now <= earlier) return "";
  return " " + std::to_string(now - earlier) + " " + what;
}

}  // namespace

OwnResources OwnResources::count() {
  // The thread sanitizer starts its own thread with a process's first one.
  [[maybe_unused]] static const bool has_had_one =
      (std::thread([] {}).join(), true);
  OwnResources found{.descriptors = count_descriptors(),
                     .threads = count_threads()};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    found.shared_mappings += is_shared(line);
  return found;
}

std::string OwnResources::more_than(const OwnResources& earlier) const {
  return surplus(descriptors, earlier.descriptors, "descriptors") +
         surplus(shared_mappings, earlier.shared_mappings, "shared mappings") +
         surplus(threads, earlier.threads, "threads");
}

}  // namespace lockstep
