#include "src/comm/rendezvous/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/comm/rendezvous/formation.h"
#include "src/store/host_address.h"
#include "src/store/peek.h"

// In a gathering's part of the store:
//
//   seat/R     empty, then the holder's name, then kLeft; kLate once rank 0
//              has given up on rank R
//   card       rank 0's JobInfo
//   agreed/R   rank R's host and settings, once it has read the card and finds
//              that it belongs to its job
//   agreed     how many have done so
//   all        set by the last one
//   objection  a rank's reason to refuse the card, kSettings if only settings
//              differ, or the rank that gave up
//   verdict    kComplete, or why there is no job; set by rank 0
//   read/R     set by rank R when it has read the verdict
//
// A failed gathering is over for all its ranks, like one that was left: each
// has taken its seat in it exactly once, and all continue with the same next
// one.
namespace lockstep {
namespace {

// Leaving must not delay the program.
constexpr std::chrono::milliseconds kGoodbye{250};

constexpr std::string_view kGatherings = "gatherings";  // rank 0's last
constexpr std::string_view kLeft = "left";
constexpr std::string_view kLate = "late";
constexpr std::string_view kComplete = "complete";
constexpr std::string_view kMissing = "missing: ";
constexpr std::string_view kEnded = "ended: rank ";
constexpr std::string_view kSettings = "settings: ";

// How long rank 0 waits for the settings of ranks that are about to come, and
// for ranks to read a verdict before the store may end with rank 0.
constexpr std::chrono::seconds kOthersCome{1};

// Ends a text that may contain line ends; no environment variable contains it.
constexpr char kTextEnd = '\0';

constexpr std::string_view kTwoJobs =
    "\n  likely:  two jobs use one port or file, or an environment variable is "
    "left over from another job"
    "\n  next:    give each job a MASTER_PORT, or file, of its own, and every "
    "rank of it the same WORLD_SIZE";

std::string own_name() {
  return fmt::format("process {} on {}", ::getpid(), own_host_name());
}

std::string rank_key(int rank) { return fmt::format("seat/{}", rank); }
std::string agreed_key(int rank) { return fmt::format("agreed/{}", rank); }
std::string read_key(int rank) { return fmt::format("read/{}", rank); }

std::string describe_missing(const std::vector<int>& ranks) {
  return fmt::format("{}rank{} {}", kMissing, ranks.size() > 1 ? "s" : "",
                     fmt::join(ranks, ", "));
}

std::string describe_ended(int rank) {
  return fmt::format("{}{}", kEnded, rank);
}

Bytes encode(const JobInfo& card) {
  return to_bytes(fmt::format("{}{}\n{}{}{}", card.has_token ? '+' : '-',
                              card.world_size, card.job, kTextEnd,
                              text_of(card.settings)));
}

JobInfo parse_info(const std::string& text) {
  JobInfo card;
  card.has_token = text.starts_with('+');
  const char* end = text.data() + text.size();
  const auto [stop, error] =
      std::from_chars(text.data() + std::min<std::size_t>(text.size(), 1), end,
                      card.world_size);
  const std::size_t job_end = text.find(kTextEnd);
  if (error != std::errc() || stop == end || *stop != '\n' ||
      job_end == std::string::npos)
    throw InvalidArgument(
        "init_process_group: the store does not hold a job of Lockstep\n"
        "  next:    use a port or file that no other program uses");
  card.job.assign(stop + 1, text.data() + job_end);
  card.settings = fields_of(std::string_view(text).substr(job_end + 1));
  return card;
}

// Whether the two can be cards of one job, ignoring the world size.
bool may_be_one_job(const JobInfo& a, const JobInfo& b) {
  return a.has_token == b.has_token &&
         (a.job == b.job || a.job.empty() || b.job.empty());
}

std::string describe(const JobInfo& card) {
  return fmt::format("{} ranks{}, {} LOCKSTEP_TOKEN", card.world_size,
                     card.job.empty() ? "" : fmt::format(" (\"{}\")", card.job),
                     card.has_token ? "with a" : "without a");
}

}  // namespace

Rendezvous::Rendezvous(std::shared_ptr<Store> store, const JobInfo& card,
                       Seconds timeout)
    : card_(card), timeout_(timeout), whole_store_(std::move(store)) {
  take();
  try {
    gather();
  } catch (...) {
    leave();
    throw;
  }
}

void Rendezvous::refuse(const std::string& why) const {
  throw InvalidArgument(fmt::format("init_process_group: rank {} of {}: {}{}",
                                    card_.rank, card_.world_size, why,
                                    kTwoJobs));
}

// Sets store_ to the part of the first gathering in which the seat is free.
void Rendezvous::take() {
  const std::int64_t last = whole_store_->add(kGatherings, 0, kStoreAnswers);
  // Distinguishes this attempt from others of this process.
  const std::string attempt =
      fmt::format("{}\n{}", own_name(),
                  std::chrono::steady_clock::now().time_since_epoch().count());
  for (std::int64_t number = std::max<std::int64_t>(last, 1);; ++number) {
    store_ = with_prefix(whole_store_, fmt::format("gathering/{}/", number));
    const std::string holder = to_text(store_->compare_and_set(
        rank_key(card_.rank), std::nullopt, to_bytes(attempt), kStoreAnswers));
    const std::string name = holder.substr(0, holder.find('\n'));
    if (holder == attempt) {
      if (card_.rank == 0)
        whole_store_->add(kGatherings, number - last, kStoreAnswers);
      return;
    }
    if (holder == kLate) miss_gathering();
    // An earlier gathering that the holder, or this process on a slow store,
    // has left.
    if (holder == kLeft || name == own_name()) continue;
    refuse(fmt::format("{} is rank {} of this job already", name, card_.rank));
  }
}

// Rank 0 has given up on this rank: an error once, then the next gathering.
void Rendezvous::miss_gathering() {
  store_->set(rank_key(card_.rank), to_bytes(kLeft), kStoreAnswers);
  throw Timeout(fmt::format(
      "init_process_group: rank {} of {} came after the others had given up "
      "waiting for it\n  next:    find out what delayed it, or raise "
      "LOCKSTEP_RENDEZVOUS_TIMEOUT",
      card_.rank, card_.world_size));
}

void Rendezvous::gather() {
  const Deadline deadline(timeout_);
  if (card_.rank == 0) {
    leave_will();
    store_->set("card", encode(card_), kStoreAnswers);
    const std::string verdict = wait_for_ranks(deadline);
    store_->set("verdict", to_bytes(verdict), kStoreAnswers);
    if (verdict != kComplete) wait_for_readers();
    heed(verdict);
  } else {
    leave_will();
    check_job(parse_info(hear("card", deadline)));
    // Rank 0 may have come at the last moment, and has its own timeout.
    const std::string verdict = hear("verdict", timeout_ + kStoreAnswers);
    if (verdict != kComplete)
      store_->set(read_key(card_.rank), {}, kStoreAnswers);
    heed(verdict);
  }
}

// From here on every waiting rank notices the end of this process.
void Rendezvous::leave_will() {
  store_->set_last_will({ended_key(card_.rank), std::string(kAnyEnded)},
                        to_bytes("ended"), kStoreAnswers);
}

// The value that rank 0 has set for `key`.
std::string Rendezvous::hear(const std::string& key, Deadline deadline) {
  const std::array<std::string, 2> either{key, ended_key(0)};
  try {
    if (store_->wait_any(either, deadline) == 1) heed(describe_ended(0));
    return to_text(store_->get(key, kStoreAnswers));
  } catch (const Timeout&) {
    // If rank 0 still comes, it need not wait for this rank.
    store_->set("objection", to_bytes(describe_missing({card_.rank})),
                kStoreAnswers);
    heed(describe_missing({0}));
    throw;
  }
}

void Rendezvous::check_job(const JobInfo& card) {
  if (card.world_size == card_.world_size && may_be_one_job(card, card_)) {
    const std::string settings = text_of(card_.settings);
    // Before rank 0 counts this rank in. Rank 0 names the values of all ranks.
    if (settings != text_of(card.settings))
      store_->set("objection", to_bytes(kSettings), kStoreAnswers);
    store_->set(agreed_key(card_.rank),
                to_bytes(own_host_name() + kTextEnd + settings), kStoreAnswers);
    if (store_->add("agreed", 1, kStoreAnswers) == card_.world_size - 1)
      store_->set("all", {}, kStoreAnswers);
    return;
  }
  const std::string objection =
      fmt::format("{}, rank {}, expects a job of {}, but rank 0 one of {}",
                  own_name(), card_.rank, describe(card_), describe(card));
  // Two parts of one job that disagree cannot start. A process of another job
  // does not stop this one.
  if (may_be_one_job(card, card_))
    store_->set("objection", to_bytes(objection), kStoreAnswers);
  else
    store_->withdraw_last_will(kStoreAnswers);
  refuse(objection);
}

// Waits for every rank; returns the gathering's verdict.
std::string Rendezvous::wait_for_ranks(Deadline deadline) {
  if (card_.world_size == 1) return std::string(kComplete);
  std::vector<std::string> any{"objection", "all"};
  for (int rank = 1; rank < card_.world_size; ++rank)
    any.push_back(ended_key(rank));
  std::size_t found = 0;
  try {
    found = store_->wait_any(any, deadline);
  } catch (const Timeout&) {
    return give_up_on_missing();
  }
  if (found == 0) {
    const auto why = to_text(store_->get("objection", kStoreAnswers));
    return why == kSettings ? describe_settings() : why;
  }
  return found == 1 ? std::string(kComplete)
                    : describe_ended(static_cast<int>(found) - 1);
}

// Returns the verdict that names the ranks that have not come.
std::string Rendezvous::give_up_on_missing() {
  std::vector<int> missing;
  for (int rank = 1; rank < card_.world_size; ++rank) {
    if (!peek(*store_, agreed_key(rank), kStoreAnswers).empty()) continue;
    // If the rank still comes, it learns that the others have given up.
    store_->compare_and_set(rank_key(rank), std::nullopt, to_bytes(kLate),
                            kStoreAnswers);
    missing.push_back(rank);
  }
  return missing.empty() ? std::string(kComplete) : describe_missing(missing);
}

// kSettings and the settings that differ, as far as the ranks have come.
std::string Rendezvous::describe_settings() {
  std::vector<FieldsOfRank> ranks{{0, own_host_name(), card_.settings}};
  const Deadline patience(kOthersCome);
  for (int rank = 1; rank < card_.world_size; ++rank) {
    const std::string key = agreed_key(rank);
    try {
      store_->wait_any(std::span(&key, 1), patience);
    } catch (const Timeout&) {  // it may be there nevertheless
    }
    const std::string text = to_text(peek(*store_, key, kStoreAnswers));
    const std::size_t end = text.find(kTextEnd);
    if (end == std::string::npos) continue;
    ranks.push_back({rank, text.substr(0, end),
                     fields_of(std::string_view(text).substr(end + 1))});
  }
  return std::string(kSettings) + join_differences(differences_in(ranks));
}

// The store may end with this process: first the ranks that wait for the
// verdict read it.
void Rendezvous::wait_for_readers() noexcept try {
  const Deadline patience(kOthersCome);
  for (int rank = 1; rank < card_.world_size; ++rank) {
    if (peek(*store_, agreed_key(rank), kStoreAnswers).empty()) continue;
    store_->wait_any(std::array{read_key(rank), ended_key(rank)}, patience);
  }
} catch (const Error&) {
  return;  // a rank is late, or the store has ended
}

void Rendezvous::heed(const std::string& verdict) const {
  if (verdict == kComplete) return;
  if (verdict.starts_with(kSettings))
    throw InvalidArgument(fmt::format(
        "init_process_group: rank {} of {}: the ranks have different settings: "
        "{}\n  likely:  a variable is set on some hosts only, since ssh, "
        "mpirun "
        "and srun need not pass it on; or the hosts have different versions\n"
        "  next:    give every rank the same value (mpirun -x NAME, srun "
        "--export=ALL), and every host the same version",
        card_.rank, card_.world_size, verdict.substr(kSettings.size())));
  if (verdict.starts_with(kEnded)) {
    int rank = 0;
    std::from_chars(verdict.data() + kEnded.size(),
                    verdict.data() + verdict.size(), rank);
    throw PeerFailure(
        rank,
        fmt::format("init_process_group failed on rank {} of {}: while the "
                    "ranks found each other, the store lost its connection to "
                    "rank {}: that process has ended or given up, or its host "
                    "has lost its link\n  next:    read rank {}'s log",
                    card_.rank, card_.world_size, rank, rank));
  }
  if (!verdict.starts_with(kMissing)) refuse(verdict);
  throw Timeout(fmt::format(
      "init_process_group timed out on rank {} of {}\n  {}\n"
      "  likely:  not started, ended early, or given another address\n"
      "  next:    read the logs of the missing; LOCKSTEP_RENDEZVOUS_TIMEOUT "
      "says how long to wait",
      card_.rank, card_.world_size, verdict));
}

void Rendezvous::leave() noexcept try {
  store_->set(rank_key(card_.rank), to_bytes(kLeft), kGoodbye);
} catch (const Error&) {
  // The store has ended, and every seat with it.
}

}  // namespace lockstep
