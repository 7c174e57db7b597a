// Which backward passes are reduced over the ranks, which gradients make such a
// pass complete, and which buckets a gradient completes.
//
// The kind of a pass. no_sync() is a scope, but, as in PyTorch, the scopes of
// the forward passes since the last backward pass decide: one outside of
// no_sync() makes the next backward pass a reduced one, whatever forward passes
// follow it. A backward pass without a forward pass before it goes by its own
// scope. A frontend that counts backward passes decides instead: PassCounter.
//
// The gradients of a pass. There are three rules: every parameter's gradient
// arrives once; or any gradient may be missing; or all arrive as in the first
// pass, whose arrivals are learnt. By the third rule each rank has its own
// counts, while all ranks agree on the parameters that no rank uses.
//
// A rank asks it about a pass in this order: decide(), begin(), arrived() for
// each gradient, end() or abandon(). A reduction, in a pass or outside of one,
// begins with begin_reduction() and ends with end_reduction(); follow() comes
// before the first.
//
// Threads: single-threaded, like the reducer that owns it.
// Errors:  those that a PassCounter throws; a parameter outside the plan is
//          InternalError.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/planning/gradient_tracker.h"

namespace lockstep {

enum class PassKind { kReduced, kLocal };

// A frontend's count of backward passes, which decides which of them are
// reduced. Not called outside of passes.
class PassCounter {
 public:
  virtual ~PassCounter() = default;

  // A backward pass begins; returns its kind, or throws to refuse it.
  virtual PassKind begins() = 0;
  // In that pass the gradient of this parameter has arrived, maybe again; may
  // throw to refuse it.
  virtual void arrived(std::size_t parameter) = 0;
  // As a pass is reduced in which not all have arrived here: whether this rank
  // may bring more before the step. Then all ranks hear of it.
  virtual bool expects_more() const = 0;
  // A pass was reduced; whether on some rank not all had arrived, or it expects
  // more. The same on all ranks.
  virtual void reduced(bool some_rank_is_incomplete) = 0;
  // A pass ended by an exception; .grad may hold part of it.
  virtual void abandoned() noexcept = 0;
};

class PassPolicy {
 public:
  enum class Rule {
    kEveryGradient,
    kAnyGradient,  // find_unused_parameters
    kAsAtFirst,    // static_graph
  };
  using Indices = std::vector<std::size_t>;

  PassPolicy(Rule rule, std::size_t parameters);

  Rule rule() const { return rule_; }

  // Of a NoSync. Scopes may nest.
  void enter_no_sync() { ++scopes_; }
  void leave_no_sync() { --scopes_; }

  // Records, at the start of a forward pass, the kind of the backward pass
  // after it. Returns what the scope here says.
  PassKind forward_begins();
  // Whether a forward pass has said that the next backward pass is reduced.
  bool expects_reduced_pass() const {
    return !counter_ && said_ == PassKind::kReduced;
  }

  // From now on only `counter` decides the kind of a backward pass.
  void count_by(std::shared_ptr<PassCounter> counter) {
    counter_ = std::move(counter);
  }
  bool has_counter() const { return counter_ != nullptr; }

  // The kind of a backward pass that begins now. Consumes the record of the
  // forward passes. Throws what the counter throws.
  PassKind decide();

  // A pass of this kind is under way until end() or abandon(), which return its
  // kind, or nothing if none was. The gradients of a local pass that is
  // abandoned are forgotten.
  void begin(PassKind kind) { under_way_ = kind; }
  std::optional<PassKind> under_way() const { return under_way_; }
  std::optional<PassKind> end();
  std::optional<PassKind> abandon() noexcept;

  // Sets the buckets of later reductions. Keeps no reference to `plan`.
  void follow(const BucketPlan& plan) { tracker_.emplace(plan); }

  // What a gradient means, and the buckets that are to be reduced now:
  // first_bucket … first_bucket + bucket_count - 1.
  struct Arrival {
    enum class Meaning {
      kStays,       // it is not for the buckets, or not yet
      kFinal,       // it belongs into its bucket now
      kUnexpected,  // the rule forbids it
    };
    Meaning meaning = Meaning::kStays;
    std::size_t first_bucket = 0;
    std::size_t bucket_count = 0;
  };

  // Begins to reduce: forgets the arrivals of the last time, and hands out the
  // buckets of which this rank's passes bring no gradient.
  Arrival begin_reduction();
  // The gradient of `parameter` has arrived in the pass under way. Throws what
  // the counter throws.
  Arrival arrived(std::size_t parameter);
  // The gradient of `parameter` is reduced outside of a pass.
  Arrival held(std::size_t parameter);

  // The parameters that no pass of this rank uses.
  const Indices& never_here() const { return never_here_; }
  // Those that have arrived, but whose number of arrivals is not known yet.
  Indices partly_arrived() const;
  // The parameters whose gradients are missing at the end of a pass, ascending.
  Indices missing() const { return tracker_->missing(); }
  // Those of `missing` that this rank must report to the others. It does not
  // report a parameter that has a gradient from a local pass, and reports none
  // while it alone still learns its counts.
  Indices worth_telling(Indices missing) const;
  // Whether this rank may bring more gradients before the step.
  bool expects_more() const { return counter_ && counter_->expects_more(); }

  // Whether a local pass since the last reduction has produced a gradient of
  // `parameter`.
  bool has_local_gradient(std::size_t parameter) const {
    return arrived_locally_[parameter] != 0;
  }
  // Whether a pass is valid in which a gradient is missing on some rank.
  bool allows_missing() const {
    return rule_ == Rule::kAnyGradient || learns_with_all();
  }
  // Sets the parameters that no rank used in this pass, when a rank reported a
  // missing gradient.
  void set_unused(std::vector<char> unused) { unused_ = std::move(unused); }
  bool unused(std::size_t parameter) const { return unused_[parameter] != 0; }

  // All buckets are reduced; see PassCounter::reduced().
  void reduced(bool some_rank_is_incomplete) {
    if (counter_) counter_->reduced(some_rank_is_incomplete);
  }
  // Whether the gradients were this rank's own, or it stood in for them.
  enum class Part { kTrains, kShadows };
  // Ends a reduction on all ranks.
  void end_reduction(Part part);
  // A reduction has failed on all ranks: its gradients, and those of earlier
  // local passes, are invalid.
  void drop_gradients();

  // All parameters in the order of their last arrivals; see GradientTracker.
  Indices arrival_order() const { return tracker_->arrival_order(); }

 private:
  PassKind here() const {
    return scopes_ > 0 ? PassKind::kLocal : PassKind::kReduced;
  }
  bool allows(std::size_t parameter, GradientTracker::Status status) const;
  bool learns_with_all() const {
    return rule_ == Rule::kAsAtFirst && !others_know_;
  }
  bool learns() const { return rule_ == Rule::kAsAtFirst && !this_rank_knows_; }

  Rule rule_;

  int scopes_ = 0;
  std::optional<PassKind> said_;  // by the forward passes before
  std::shared_ptr<PassCounter> counter_;
  std::optional<PassKind> under_way_;

  std::optional<GradientTracker> tracker_;
  GradientTracker::Counts counts_;  // of the next pass, by parameter
  Indices never_here_;
  std::vector<char> arrived_locally_;  // since the last pass; by parameter
  Indices arriving_locally_;           // in the present pass, which is local
  std::vector<char> unused_;           // by any rank; by parameter
  bool this_rank_knows_ = false;
  bool others_know_ = false;
};

}  // namespace lockstep
