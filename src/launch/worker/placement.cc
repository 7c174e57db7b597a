#include "src/launch/worker/placement.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <cerrno>
#include <climits>
#include <cstddef>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

hwloc_topology_t new_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0)
    throw SystemError("hwloc could not describe this host", errno);
  return topology;
}

void load(hwloc_topology_t topology) {
  if (hwloc_topology_load(topology) != 0)
    throw SystemError("hwloc could not read which CPUs this host has", errno);
}

// One per worker. Neighbours stand side by side; workers share CPUs only where
// they outnumber them.
std::vector<Bitmap> divide(hwloc_topology_t topology, int workers) {
  std::vector<hwloc_bitmap_t> sets(static_cast<std::size_t>(workers));
  hwloc_obj_t root = hwloc_get_root_obj(topology);
  if (hwloc_distrib(topology, &root, 1, sets.data(),
                    static_cast<unsigned>(workers), INT_MAX, 0) != 0)
    throw SystemError("hwloc could not divide this host's CPUs", errno);
  std::vector<Bitmap> shares;
  shares.reserve(sets.size());
  for (hwloc_bitmap_t set : sets) shares.emplace_back(set);
  return shares;
}

// All CPUs of the objects of a kind that hold one of `share`; all CPUs of the
// host where its kernel does not tell of such objects.
Bitmap whole(hwloc_topology_t topology, hwloc_obj_type_t kind,
             const Bitmap& share) {
  Bitmap cpus(hwloc_bitmap_alloc());
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology, kind, nullptr);
       object != nullptr;
       object = hwloc_get_next_obj_by_type(topology, kind, object))
    if (hwloc_bitmap_intersects(object->cpuset, share.get()) != 0)
      hwloc_bitmap_or(cpus.get(), cpus.get(), object->cpuset);
  if (hwloc_bitmap_iszero(cpus.get()) != 0)
    hwloc_bitmap_copy(cpus.get(), hwloc_topology_get_topology_cpuset(topology));
  return cpus;
}

std::vector<int> numbers_in(const Bitmap& cpus) {
  std::vector<int> numbers;
  for (int cpu = hwloc_bitmap_first(cpus.get()); cpu >= 0;
       cpu = hwloc_bitmap_next(cpus.get(), cpu))
    numbers.push_back(cpu);
  return numbers;
}

}  // namespace

HostTopology::HostTopology()
    : topology_(new_topology(), hwloc_topology_destroy) {
  hwloc_topology_set_flags(topology_.get(),
                           HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
  hwloc_topology_set_cache_types_filter(topology_.get(),
                                        HWLOC_TYPE_FILTER_KEEP_NONE);
  load(topology_.get());
  if (hwloc_topology_is_thissystem(topology_.get()) == 0)
    throw InvalidArgument(
        "HWLOC_SYNTHETIC or HWLOC_XMLFILE describes another machine: unset it, "
        "or give --bind none");
}

HostTopology::HostTopology(const std::string& description)
    : topology_(new_topology(), hwloc_topology_destroy) {
  if (hwloc_topology_set_synthetic(topology_.get(), description.c_str()) != 0)
    throw InvalidArgument(
        fmt::format("hwloc does not know the host \"{}\"", description));
  load(topology_.get());
}

int HostTopology::cpus() const {
  return hwloc_get_nbobjs_by_type(topology_.get(), HWLOC_OBJ_PU);
}

std::vector<std::vector<int>> HostTopology::place(Binding binding,
                                                  int workers) const {
  const bool is_crowded = workers > cpus();
  if (binding == Binding::kNone) return {};
  if (binding == Binding::kAuto && (workers == 1 || is_crowded)) return {};
  if (binding == Binding::kCore && is_crowded)
    throw InvalidArgument(fmt::format(
        "--bind core: {} ranks cannot have a CPU each, since this job may use "
        "{} here\n  next:    start at most {} ranks on this host, or give "
        "--bind none",
        workers, cpus(), cpus()));
  std::vector<std::vector<int>> places;
  for (Bitmap& share : divide(topology_.get(), workers)) {
    if (binding == Binding::kSocket)
      share = whole(topology_.get(), HWLOC_OBJ_PACKAGE, share);
    if (binding == Binding::kNuma)
      share = whole(topology_.get(), HWLOC_OBJ_NUMANODE, share);
    places.push_back(numbers_in(share));
  }
  return places;
}

std::vector<std::vector<int>> place_workers(Binding binding, int workers) {
  if (binding == Binding::kNone) return {};
  if (binding != Binding::kAuto) return HostTopology().place(binding, workers);
  // Under a quota other processes share the CPUs, and the launcher cannot know
  // which.
  if (workers == 1 || usable_cores() < static_cast<int>(allowed_cores().size()))
    return {};
  try {
    return HostTopology().place(binding, workers);
  } catch (const Error& error) {
    log(LogLevel::kWarn,
        std::string("ranks are not bound to cores: ") + error.what());
    return {};
  }
}

}  // namespace lockstep
