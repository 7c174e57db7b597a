#include "lockstep/torch/ddp/join.h"

#include <exception>

namespace lockstep {
namespace {

class EndOfJoin {
 public:
  explicit EndOfJoin(Replica& replica) : replica_(replica) {}
  ~EndOfJoin() { replica_.end_join(); }
  EndOfJoin(const EndOfJoin&) = delete;
  EndOfJoin& operator=(const EndOfJoin&) = delete;

 private:
  Replica& replica_;
};

}  // namespace

Join::Join(Replica& replica, const JoinOptions& options)
    : replica_(replica), exceptions_(std::uncaught_exceptions()) {
  replica_.begin_join(options);
}

Join::~Join() noexcept(false) {
  const EndOfJoin end(replica_);
  if (std::uncaught_exceptions() == exceptions_) replica_.shadow_the_others();
}

}  // namespace lockstep
