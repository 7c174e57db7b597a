// Reduces the last of the backward passes before each step of an optimizer; the
// ones before it add to .grad on their own rank. Passes count for each
// parameter: where some rank has not used all of them in the passes of a step,
// further ones may bring the rest, and are reduced by synchronize().
//
// Where the group allows joins, each reduction is announced before it begins,
// so that ranks without data take part in it: see join_announcements.h.
//
// Threads: single-threaded, backward passes included. It may be moved between
//          passes.
// Errors:  as Reducer and JoinAnnouncements; InvalidArgument from the backward
//          pass that is one more than a step takes, and from what comes after
//          it until begin_anew().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/gradient/reducer.h"

namespace lockstep::horovod {

class PassesPerStep {
 public:
  // `passes`: at least 1, the same on every rank.
  PassesPerStep(std::vector<NamedParameter> parameters,
                const std::shared_ptr<ProcessGroup>& group,
                const ReducerOptions& options, int passes);

  Reducer& reducer() { return *reducer_; }

  // Makes .grad what the step is to read, if the passes so far have not: where
  // there were fewer than a step takes, or none on this rank, or more that used
  // other parameters. Passes count anew from the next one on, whether a step is
  // made or not.
  void synchronize();
  bool are_synchronized() const;

  // A step was made, or gradients were dropped: passes count anew.
  void begin_anew() { count_->begin_anew(); }

 private:
  class Count final : public PassCounter {
   public:
    Count(const std::vector<NamedParameter>& parameters, ReduceOp op,
          int passes);

    // From now on `announcements` hears of every reduction, as those of the
    // optimizer of this number.
    void announce_to(std::shared_ptr<JoinAnnouncements> announcements,
                     std::int64_t number);
    void announce_gradients();
    void announce_question();

    PassKind begins() override;
    void arrived(std::size_t parameter) override;
    bool expects_more() const override;
    void reduced(bool some_rank_is_incomplete) override;
    void abandoned() noexcept override;

    void begin_anew();
    void end();
    // This rank has joined: it takes part in one of the others' reductions.
    void begin_as_joined();
    void check_none_refused() const;
    bool is_reduced() const { return reduced_; }
    // Whether all ranks are to ask each other for passes after the reduced one.
    bool may_have_more() const { return more_; }
    bool has_more() const { return pass_ > in_step_; }

   private:
    std::vector<std::string> names_;
    ReduceOp op_;
    int in_step_;
    int pass_ = 0;             // the last that began
    std::vector<int> passes_;  // by parameter: that brought its gradient
    std::vector<int> last_;    // by parameter: the last of them
    bool reduced_ = false;
    bool more_ = false;
    bool ended_ = false;
    bool refused_one_ = false;  // or left it halfway: it has added to .grad
    bool joined_ = false;
    std::shared_ptr<JoinAnnouncements> announcements_;
    std::int64_t number_ = 0;
  };

  class TakesPartAsJoined;

  std::shared_ptr<Count> count_;
  std::shared_ptr<Reducer> reducer_;
  bool alone_;
  std::shared_ptr<JoinedGradients> as_joined_;
};

}  // namespace lockstep::horovod
