// A backend of a single rank, whose operations end as a test says.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

class ScriptedBackend : public Backend,
                        public PendingWork,
                        public std::enable_shared_from_this<ScriptedBackend> {
 public:
  enum class Outcome { kComplete, kPending, kFailed };

  // The outcome of the operations that are started from now on.
  Outcome next = Outcome::kComplete;
  // The ranks that pending operations wait for.
  std::vector<int> late;

  // Pending operations complete, or fail with `error`, as kFailed ones do.
  void complete() { complete_ = true; }
  void fail(std::exception_ptr error) { error_ = std::move(error); }

  std::string_view name() const override { return "scripted"; }
  bool supports(const Operation&) const override { return true; }
  Work start(const Operation&) override {
    if (next == Outcome::kFailed) return Work::failed(error_);
    if (next == Outcome::kComplete) return {};
    return Work(shared_from_this(), ++tickets_);
  }
  void abort(std::string_view) noexcept override {}
  void leave() noexcept override {}

  // The group has no other rank: a pending operation times out at once.
  void wait(std::uint64_t, std::optional<Deadline>) override {
    if (error_) std::rethrow_exception(error_);
    if (!complete_) throw Timeout("the script does not complete it");
  }
  bool done(std::uint64_t) override { return complete_ || error_; }
  std::vector<int> missing(std::uint64_t) override {
    return done(0) ? std::vector<int>{} : late;
  }

 private:
  std::uint64_t tickets_ = 0;
  std::atomic<bool> complete_{false};
  std::exception_ptr error_;
};

}  // namespace lockstep
