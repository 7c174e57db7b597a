#include "lockstep/comm/registry.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/suggest.h"
#include "lockstep/comm/hybrid/hybrid_backend.h"
#include "lockstep/comm/reference/reference_backend.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/wire/wire_backend.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 5> kNames{"shm", "hybrid", "gloo", "mpi",
                                                 "reference"};

}  // namespace

std::span<const std::string_view> backend_names() { return kNames; }

std::shared_ptr<Backend> make_backend(const std::string& name,
                                      const GroupIdentity& identity,
                                      std::shared_ptr<Store> store,
                                      const Settings& settings) {
  if (name == "shm") return make_shm_backend(identity, *store, settings);
  if (name == "hybrid")
    return make_hybrid_backend(identity, std::move(store), settings);
  if (name == "gloo" || name == "mpi")
    return make_wire_backend(name, identity, std::move(store), settings);
  if (name == "reference")
    return make_reference_backend(identity, std::move(store));
  throw InvalidArgument(unknown_name("backend", name, kNames));
}

}  // namespace lockstep
