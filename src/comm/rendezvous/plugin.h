// Finds and loads a plug-in: a shared object liblockstep_NAME.so that exports
// one C table of functions.
//
// wire/transport_plugin.h lists the places that are searched; that and
// nccl/gpu_plugin.h are the two kinds of plug-ins. The search skips a file that
// cannot be used or has another version. A loaded plug-in is never unloaded.
//
// Threads: one thread per search; searches are independent.
// Errors:  SystemError when the process is out of file descriptors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/settings.h"

namespace lockstep {

// The plug-in for GPUs.
inline constexpr std::string_view kGpuPlugin = "nccl";

// Calls a function without arguments that returns its plug-in's table.
template <class Table>
const void* call_entry(void* entry) {
  return reinterpret_cast<const Table* (*)()>(entry)();
}

// What a plug-in must export.
struct PluginBorder {
  const char* entry;           // the name of the function
  const void* (*call)(void*);  // call_entry() with the table's type
  std::uint32_t version;       // the table's first member
  int flags = 0;               // for dlopen, besides RTLD_NOW and RTLD_LOCAL
};

// One search for a plug-in, and its result.
class PluginSearch {
 public:
  PluginSearch(std::string_view name, const PluginBorder& border,
               const Settings& settings);

  // Null if no plug-in was found.
  const void* table() const { return table_; }
  // The file that was loaded.
  const std::string& file() const { return taken_; }
  // Why no plug-in was found: each file that cannot be used, else the folders.
  std::string reason() const;

 private:
  bool in(const std::vector<std::string>& folders);
  bool at_loaders();
  bool open(const std::string& place);

  PluginBorder border_;
  std::string file_;
  const void* table_ = nullptr;
  std::string taken_;  // as the loader names it
  std::vector<std::string> unusable_;
  std::vector<std::string> looked_;
};

// "liblockstep_NAME.so".
std::string plugin_file(std::string_view name);

// The first folder that holds one of the plug-ins, regardless of the settings.
// Empty if no folder does.
std::string folder_of_plugins(std::span<const std::string_view> names);

}  // namespace lockstep
