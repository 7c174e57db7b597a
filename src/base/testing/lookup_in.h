// An environment of a test's own.
//
// Threads: any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "src/base/environment.h"

namespace lockstep {

inline EnvironmentLookup lookup_in(
    std::map<std::string, std::string> variables) {
  return [all = std::move(variables)](const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace lockstep
