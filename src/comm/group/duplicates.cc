#include "src/comm/group/duplicates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/comm/group/group_core.h"

namespace lockstep {

class Duplicates::Kept {
 public:
  // By index, which is the number minus 1: 1 if this rank does not use the
  // duplicate.
  using Free = std::array<std::uint8_t, kMost>;

  Free free() {
    const MutexLock lock(mutex_);
    Free free;
    free.fill(1);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      free.at(i) = entries_[i].taken ? 0 : 1;
    return free;
  }

  // Makes the missing duplicates up to `index`.
  void make_up_to(std::size_t index, const Make& make) {
    const MutexLock lock(mutex_);
    while (entries_.size() <= index) {
      const int number = static_cast<int>(entries_.size()) + 1;
      entries_.push_back({make(number)});
    }
  }

  std::shared_ptr<ProcessGroup> take(std::size_t index) {
    const MutexLock lock(mutex_);
    entries_[index].taken = true;
    return entries_[index].group;
  }
  void give_back(std::size_t index) {
    const MutexLock lock(mutex_);
    entries_[index].taken = false;
  }

  void leave() noexcept {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    {
      const MutexLock lock(mutex_);
      for (const Entry& entry : entries_) groups.push_back(entry.group);
    }
    for (const auto& group : groups) group->leave();
  }

 private:
  struct Entry {
    std::shared_ptr<ProcessGroup> group;
    bool taken = false;
  };
  Mutex mutex_;
  std::vector<Entry> entries_ LOCKSTEP_GUARDED_BY(mutex_);
};

namespace {

std::size_t lowest_free(const std::array<std::uint8_t, Duplicates::kMost>& free,
                        const GroupCore& original) {
  const auto found = std::ranges::find(free, 1);
  if (found == free.end())
    throw InvalidArgument(fmt::format(
        "group \"{}\" has {} duplicates in use already, one for each "
        "DistributedDataParallel, optimizer or Reducer on it\n"
        "  next:    destroy unused ones, or make separate groups with "
        "new_group()",
        original.identity().name, Duplicates::kMost));
  return static_cast<std::size_t>(found - free.begin());
}

// Makes each element the least of all ranks'.
void combine(GroupCore& group, std::span<std::uint8_t> elements,
             std::string_view label) {
  const Buffer buffer = view(elements);
  group
      .run({.kind = OperationKind::kAllReduce,
            .outputs = Buffers(buffer),
            .reduction = ReduceOp::kMin},
           {.label = label})
      .wait();
}

}  // namespace

Duplicates::Duplicates() : own_(std::make_shared<Kept>()), kept_(own_) {}

void Duplicates::share(const Duplicates& of_group) {
  kept_ = of_group.kept_;
  own_.reset();
}

// If one rank cannot make it, no rank gets it.
std::shared_ptr<ProcessGroup> Duplicates::take(GroupCore& original,
                                               const Make& make) {
  const std::shared_ptr<Kept> kept = kept_.lock();
  LOCKSTEP_CHECK(kept, "a duplicate is in use that was given back");
  Kept::Free free = kept->free();
  combine(original, free, "number of a duplicate");
  const std::size_t index = lowest_free(free, original);
  std::exception_ptr error;
  try {
    kept->make_up_to(index, make);
  } catch (...) {
    error = std::current_exception();
  }
  std::array<std::uint8_t, 1> made{static_cast<std::uint8_t>(error ? 0 : 1)};
  combine(original, made, "making a duplicate");
  if (error) std::rethrow_exception(error);
  if (made[0] == 0)
    throw InvalidArgument(
        fmt::format("group \"{}\" could not be duplicated on another rank\n"
                    "  next:    read the other ranks' logs",
                    original.identity().name));
  auto group = kept->take(index);
  ProcessGroup* const plain = group.get();
  return {plain, [kept, group = std::move(group), index,
                  process = ForkCheck()](ProcessGroup*) {
            if (!process.is_child()) kept->give_back(index);
          }};
}

void Duplicates::leave() noexcept {
  if (own_) own_->leave();
}

}  // namespace lockstep
