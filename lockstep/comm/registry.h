// The backends that exist, by name.
//
// Threads: pure functions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/store/store.h"

namespace lockstep {

// Every name that make_backend knows, "auto" not among them.
std::span<const std::string_view> backend_names();

// Makes the backend called `name` together with the other ranks of
// `identity`'s group, all of which call this with the same store.
// InvalidArgument with the known names for any other.
std::shared_ptr<Backend> make_backend(const std::string& name,
                                      const GroupIdentity& identity,
                                      std::shared_ptr<Store> store,
                                      const Settings& settings);

}  // namespace lockstep
