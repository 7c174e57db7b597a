// Carries out one collective, from beginning to end, on the calling thread.
//
//   small       one exchange of control messages, which carry the elements
//   otherwise   the control messages (unless LOCKSTEP_CHECK says no), then
//     moves     exchange_blocks
//     reduces, broadcast   SharePipeline
//
// A CollectiveWay compares the calls in its own way, and carries out the
// operations that it takes.
//
// Threads: one collective of a group at a time.
// Errors:  Mismatch on every rank; those of WireCore's waits.
#pragma once

#include "src/comm/operation/routes.h"
#include "src/comm/wire/collective_way.h"
#include "src/comm/wire/control_exchange.h"
#include "src/comm/wire/share_pipeline.h"
#include "src/comm/wire/wire_core.h"

namespace lockstep {

class Collective {
 public:
  Collective(WireCore& core, ControlExchange& control,
             const Operation& operation, Deadline deadline);

  // `way` may be null.
  void run(CollectiveWay* way);

 private:
  bool is_inline() const;
  bool is_checked() const;
  void compare(std::span<const AnnouncedCall> calls) const;
  void check_signatures();
  void run_inline();
  void combine_inline();
  SharePlan empty_plan() const;
  SharePlan reduction_plan() const;
  SharePlan scatter_plan() const;
  SharePlan broadcast_plan() const;
  void run_pipeline(const SharePlan& plan);
  int tag() const;

  WireCore& core_;
  ControlExchange& control_;
  const Operation& operation_;
  const Deadline deadline_;
  const Signature signature_;
  const Routes routes_;
  const std::size_t element_bytes_;
};

// The same in a group of one rank, without messages.
void run_alone(const Operation& operation);

}  // namespace lockstep
