// Finding and loading a plug-in: a shared object that is named by what it
// brings, liblockstep_NAME.so, and exports one C table of functions.
//
// wire/transport_plugin.h lists where it is looked for; that and
// nccl/gpu_plugin.h are the two kinds of plug-ins there are. One that cannot be
// used, or is of another version, is passed over. Once loaded it stays.
//
// Threads: searches are independent; one is of a single thread.
// Errors:  SystemError when the process is out of file descriptors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/settings.h"

namespace lockstep {

// What a plug-in must export.
struct PluginBorder {
  const char* entry;      // a function without arguments that gives the table
  std::uint32_t version;  // the table's first member
  int flags = 0;          // for dlopen, besides RTLD_NOW and RTLD_LOCAL
};

// One search for a plug-in, and what came of it.
class PluginSearch {
 public:
  PluginSearch(std::string_view name, const PluginBorder& border,
               const Settings& settings);

  // Null when there is none.
  const void* table() const { return table_; }
  // The file that was taken.
  const std::string& file() const { return taken_; }
  // Why there is none: each file that cannot be used, else the folders.
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

// The first folder that holds one of the plug-ins, whatever the settings say.
// Empty when there is none.
std::string folder_of_plugins(std::span<const std::string_view> names);

}  // namespace lockstep
