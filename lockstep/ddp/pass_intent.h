// Whether the next backward pass is reduced over the ranks, or stays local.
//
// no_sync() is a scope, but what counts is where the forward pass ran, as in
// PyTorch: the last one before a backward pass decides. A backward pass before
// which none ran goes by the scope that it runs in itself. A front door that
// counts backward passes gives a rule of its own instead.
//
// Threads: single-threaded.
// Errors:  what a rule throws.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep {

enum class PassKind { kReduced, kLocal };

class PassIntent {
 public:
  // Scopes may lie within each other.
  void enter_no_sync() { ++scopes_; }
  void leave_no_sync() { --scopes_; }

  // What a forward pass that begins here says of the backward pass after it.
  PassKind here() const {
    return scopes_ > 0 ? PassKind::kLocal : PassKind::kReduced;
  }
  void forward_begins() { said_ = here(); }

  // From now on `rule` alone says what a backward pass is that begins; what it
  // throws, the pass throws.
  void decide_by(std::function<PassKind()> rule) { rule_ = std::move(rule); }

  bool has_rule() const { return rule_ != nullptr; }

  // What a backward pass that begins now is. What forward passes said is spent.
  PassKind backward_begins() {
    if (rule_) return rule_();
    const PassKind kind = said_.value_or(here());
    said_.reset();
    return kind;
  }

 private:
  int scopes_ = 0;
  std::optional<PassKind> said_;  // by the last forward pass
  std::function<PassKind()> rule_;
};

// A scope in which backward passes are local: gradients accumulate in .grad,
// and the next pass outside reduces the sum.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<PassIntent> intent)
      : intent_(std::move(intent)) {
    intent_->enter_no_sync();
  }
  ~NoSync() { intent_->leave_no_sync(); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<PassIntent> intent_;
};

}  // namespace lockstep
