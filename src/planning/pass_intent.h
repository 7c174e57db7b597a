// Decides whether the next backward pass is reduced over the ranks or stays
// local.
//
// no_sync() is a scope, but, as in PyTorch, the scopes of the forward passes
// since the last backward pass decide: one outside of no_sync() makes the next
// backward pass a reduced one, whatever forward passes follow it. A backward
// pass without a forward pass before it goes by its own scope. A frontend that
// counts backward passes sets its own rule instead.
//
// Threads: single-threaded.
// Errors:  those that a rule throws.
#pragma once

#include <functional>
#include <optional>
#include <utility>

namespace lockstep {

enum class PassKind { kReduced, kLocal };

class PassIntent {
 public:
  // Of a NoSync. Scopes may nest.
  void enter_no_sync() { ++scopes_; }
  void leave_no_sync() { --scopes_; }

  // Records, at the start of a forward pass, the kind of the backward pass
  // after it.
  PassKind here() const {
    return scopes_ > 0 ? PassKind::kLocal : PassKind::kReduced;
  }
  void forward_begins() {
    if (said_ != PassKind::kReduced) said_ = here();
  }

  // From now on only `rule` decides the kind of a backward pass that begins;
  // the pass throws what `rule` throws.
  void decide_by(std::function<PassKind()> rule) { rule_ = std::move(rule); }

  // Whether a forward pass has said that the next backward pass is reduced.
  bool expects_reduced_pass() const {
    return !rule_ && said_ == PassKind::kReduced;
  }

  bool has_rule() const { return rule_ != nullptr; }

  // The kind of a backward pass that begins now. Consumes the record of the
  // forward passes.
  PassKind backward_begins() {
    if (rule_) return rule_();
    const PassKind kind = said_.value_or(here());
    said_.reset();
    return kind;
  }

 private:
  int scopes_ = 0;
  std::optional<PassKind> said_;  // by the forward passes before
  std::function<PassKind()> rule_;
};

}  // namespace lockstep
