#include "src/comm/group/round_store.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/store/elastic_round.h"

namespace lockstep {

RoundStore::RoundStore(const std::shared_ptr<Store>& job_store, int round)
    : RoundStore(
          job_store, round,
          std::make_shared<PrefixStore>(job_store, elastic_prefix(round))) {}

RoundStore::RoundStore(std::shared_ptr<Store> job_store, int round,
                       std::shared_ptr<PrefixStore> part)
    : ForwardingStore(part),
      job_store_(std::move(job_store)),
      round_(round),
      part_(std::move(part)) {}

Bytes RoundStore::get(std::string_view key, Deadline deadline,
                      const Cancellation* cancellation) {
  const std::string only(key);
  if (!formed_) wait_any(std::span(&only, 1), deadline, cancellation);
  return ForwardingStore::get(key, deadline, cancellation);
}

// Callers know that the keys exist: one wait shows whether the round is over.
std::vector<Bytes> RoundStore::multi_get(std::span<const std::string> keys,
                                         Deadline deadline,
                                         const Cancellation* cancellation) {
  if (!formed_ && !keys.empty())
    wait_any(keys.first(1), deadline, cancellation);
  return ForwardingStore::multi_get(keys, deadline, cancellation);
}

std::size_t RoundStore::wait_any(std::span<const std::string> keys,
                                 Deadline deadline,
                                 const Cancellation* cancellation) {
  if (formed_) return ForwardingStore::wait_any(keys, deadline, cancellation);
  std::vector<std::string> all;
  for (const std::string& key : keys) all.push_back(part_->whole(key));
  all.push_back(elastic_round_key(round_ + 1));
  // A member may have ended well without having joined this round.
  all.emplace_back(kElasticOver);
  const std::size_t found = job_store_->wait_any(all, deadline, cancellation);
  if (found < keys.size()) return found;
  if (found > keys.size())
    throw NetworkError(
        fmt::format("round {} of the job ends before its group has formed: {}",
                    round_, to_text(job_store_->get(kElasticOver, deadline))));
  throw NetworkError(fmt::format(
      "round {} of the job is over before its group has formed: the launcher "
      "has begun the next one, as a member ended or another one came",
      round_));
}

}  // namespace lockstep
