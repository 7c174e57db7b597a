#include "src/data/broken_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace

bool BrokenSamples::is_broken(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument&) {
    return true;
  } catch (const SystemError& failed) {
    const int reason = failed.error_number();
    return reason != EMFILE && reason != ENFILE && reason != ENOMEM;
  } catch (...) {
    return false;
  }
}

std::int64_t BrokenSamples::run_from(std::int64_t first) const {
  const auto next = runs_.upper_bound(first);
  if (next == runs_.begin()) return 0;
  return std::max<std::int64_t>(std::prev(next)->second - first, 0);
}

std::int64_t BrokenSamples::known_from(std::int64_t first, std::int64_t most) {
  if (!any_.load()) return 0;
  const MutexLock lock(mutex_);
  first = wrapped(first);
  std::int64_t run = run_from(first);
  if (first + run == size_) run += run_from(0);
  return std::min(run, most);
}

void BrokenSamples::find(std::int64_t index, const std::exception_ptr& error) {
  const MutexLock lock(mutex_);
  if (!errors_.try_emplace(index, error).second) return;
  any_.store(true);
  std::int64_t end = index + 1;
  auto next = runs_.find(end);
  if (next != runs_.end()) {
    end = next->second;
    runs_.erase(next);
  }
  next = runs_.upper_bound(index);
  if (next != runs_.begin() && std::prev(next)->second == index)
    std::prev(next)->second = end;
  else
    runs_.emplace(index, end);
}

std::exception_ptr BrokenSamples::error_of(std::int64_t index) {
  const MutexLock lock(mutex_);
  return errors_.at(index);
}

std::exception_ptr BrokenSamples::count(const SampleRange& range) {
  const MutexLock lock(mutex_);
  for (std::int64_t i = 0; i < range.count; ++i) {
    const std::int64_t index = wrapped(range.first + i);
    // Those after it were counted with it.
    if (indices_.contains(index)) return nullptr;
    const std::exception_ptr& error = errors_.at(index);
    if (std::ssize(counted_) < most_) {
      counted_.push_back({index, message_of(error)});
      indices_.insert(index);
      continue;
    }
    if (most_ == 0) return error;
    return std::make_exception_ptr(InvalidArgument(fmt::format(
        "more than {} samples of this pass are broken, which is as many as are "
        "permitted; one more: {}\n"
        "  next:    repair or remove them, or permit more with --max-broken "
        "(LoaderOptions::max_broken)",
        most_, message_of(error))));
  }
  return nullptr;
}

}  // namespace lockstep
