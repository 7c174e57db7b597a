#include "lockstep/comm/work.h"

namespace lockstep {
namespace {

class FailedWork : public PendingWork {
 public:
  explicit FailedWork(std::exception_ptr error) : error_(std::move(error)) {}
  void wait(std::uint64_t, std::optional<Deadline>) override {
    std::rethrow_exception(error_);
  }
  bool done(std::uint64_t) override { return true; }
  std::vector<int> missing(std::uint64_t) override { return {}; }

 private:
  std::exception_ptr error_;
};

}  // namespace

Work Work::failed(std::exception_ptr error) {
  return Work(std::make_shared<FailedWork>(std::move(error)), 0);
}

}  // namespace lockstep
