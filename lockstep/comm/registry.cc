#include "lockstep/comm/registry.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"
#include "lockstep/comm/reference/reference_backend.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 1> kNames{"reference"};

}  // namespace

std::span<const std::string_view> backend_names() { return kNames; }

std::shared_ptr<Backend> make_backend(
    const std::string& name, const GroupIdentity& identity,
    std::shared_ptr<Store> store, [[maybe_unused]] const Settings& settings) {
  if (name == "reference")
    return make_reference_backend(identity, std::move(store));
  throw InvalidArgument(unknown_name("backend", name, kNames));
}

}  // namespace lockstep
