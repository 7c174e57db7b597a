#include "faults.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "fault_calls.h"
#include "fault_round.h"
#include "lockstep/store/store.h"
#include "src/net/free_port.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// The choices of a seed.
struct Choice {
  explicit Choice(const Injection& injection) : random(injection.seed) {
    ranks = 2 + static_cast<int>(random() % 3);
    victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    moment = std::chrono::microseconds(random() % 30000);
  }

  RoundSetting setting(const Injection& injection,
                       std::vector<std::string> variables = {}) const {
    return {.backend = injection.backend,
            .ranks = ranks,
            .seed = injection.seed,
            .variables = std::move(variables)};
  }

  std::mt19937 random;
  int ranks = 0;
  int victim = 0;
  std::chrono::microseconds moment{};
};

std::string told(int rank, const RankError& error) {
  return fmt::format("rank {} got {} of rank {}: {}", rank, error.type,
                     error.rank, error.message);
}

// Whether the message names `rank`, and no other, as missing.
bool names_only(const RankError& error, int rank) {
  const std::string_view text = error.message;
  constexpr std::string_view kHead = "missing: rank ";
  const std::string name = fmt::format("{}{}", kHead, rank);
  bool found = false;
  for (auto at = text.find(kHead); at != std::string_view::npos;
       at = text.find(kHead, at + kHead.size())) {
    if (!text.substr(at).starts_with(name)) return false;
    found = true;
  }
  return found;
}

Outcome close(FaultRound& round) {
  return {.complaints = round.finish(),
          .milliseconds = round.milliseconds(),
          .checked = round.checked()};
}

void expect_peer_failure(FaultRound& round, int victim, std::int64_t moment) {
  for (int rank = 0; rank < round.ranks(); ++rank) {
    if (rank == victim) continue;
    const RankError error = round.error_of(rank);
    round.note_time(error, moment);
    round.expect(error.type == "PeerFailure" && error.rank == victim,
                 told(rank, error));
    round.expect_clean_end(rank);
  }
}

void kill_and_watch(FaultRound& round, const Choice& choice, int victim) {
  round.all_say("begun");
  round.expect(round.processes().lives_until(victim, choice.moment),
               fmt::format("rank {} ended before it was killed: {}", victim,
                           round.processes().output(victim)));
  const std::int64_t moment = monotonic_now();
  round.processes().send_signal(victim, SIGKILL);
  expect_peer_failure(round, victim, moment);
  round.processes().wait_for_end(victim, FaultRound::kTimeout);
}

}  // namespace

Outcome inject_kill(const Injection& injection) {
  const Choice choice(injection);
  FaultRound round(choice.setting(injection), "work");
  attempt(round, [&] { kill_and_watch(round, choice, choice.victim); });
  return close(round);
}

Outcome inject_kill_of_store(const Injection& injection) {
  const Choice choice(injection);
  FaultRound round(
      choice.setting(injection, {fmt::format("INIT_METHOD=tcp://127.0.0.1:{}",
                                             find_free_port())}),
      "work");
  attempt(round, [&] { kill_and_watch(round, choice, 0); });
  return close(round);
}

Outcome inject_stop(const Injection& injection) {
  const Choice choice(injection);
  const int victim = choice.victim;
  FaultRound round(choice.setting(injection, {"LOCKSTEP_TIMEOUT=2"}), "guard");
  RankProcesses& processes = round.processes();
  attempt(round, [&] {
    round.all_say("begun");
    processes.lives_until(victim, choice.moment);
    const std::int64_t moment = monotonic_now();
    processes.send_signal(victim, SIGSTOP);
    for (int rank = 0; rank < round.ranks(); ++rank) {
      if (rank == victim) continue;
      const RankError error = round.error_of(rank);
      round.note_time(error, moment);
      const bool gave_up =
          error.type == "Timeout" || error.type == "PeerFailure";
      round.expect(
          gave_up && (error.rank == victim || names_only(error, victim)),
          told(rank, error));
      processes.wait_for_line(rank, "guarding", FaultRound::kTimeout);
    }
    processes.send_signal(victim, SIGCONT);
    // Its last actions are over once it has its own error.
    processes.wait_for_line(victim, "guarding", FaultRound::kTimeout);
    open_store(processes.store_url(), {.token = RankProcesses::kToken})
        ->set("late rank went on", {}, FaultRound::kTimeout);
    for (int rank = 0; rank < round.ranks(); ++rank) {
      processes.wait_for_line(rank, "kept", FaultRound::kTimeout);
      round.expect_clean_end(rank);
    }
  });
  return close(round);
}

namespace {

void stop_and_continue(FaultRound& round, Choice& choice, int number) {
  RankProcesses& processes = round.processes();
  const std::string freed = fmt::format("freed {} ", number);
  round.all_say(fmt::format("begun {}", number));
  const int victim =
      static_cast<int>(choice.random() % static_cast<unsigned>(round.ranks()));
  processes.lives_until(victim,
                        std::chrono::microseconds(choice.random() % 30000));
  processes.send_signal(victim, SIGSTOP);
  for (int rank = 0; rank < round.ranks(); ++rank)
    if (rank != victim)
      processes.wait_for_line(rank, freed, FaultRound::kTimeout);
  processes.send_signal(victim, SIGCONT);
  processes.wait_for_line(victim, freed, FaultRound::kTimeout);
  open_store(processes.store_url(), {.token = RankProcesses::kToken})
      ->set(fmt::format("round {} is over", number), {}, FaultRound::kTimeout);
}

}  // namespace

Outcome inject_reuse(const Injection& injection, int rounds) {
  Choice choice(injection);
  FaultRound round(
      choice.setting(injection, {"LOCKSTEP_TIMEOUT=0.1",
                                 fmt::format("ROUNDS={}", rounds)}),
      "reuse");
  attempt(round, [&] {
    for (int number = 0; number < rounds; ++number)
      stop_and_continue(round, choice, number);
    for (int rank = 0; rank < round.ranks(); ++rank)
      round.expect_clean_end(rank);
  });
  return close(round);
}

Outcome inject_stop_of_laden(const Injection& injection, std::size_t bytes) {
  Choice choice(injection);
  choice.ranks = 2;
  FaultRound round(
      choice.setting(injection, {"LOCKSTEP_TIMEOUT=0.5",
                                 fmt::format("LADEN_BYTES={}", bytes)}),
      "laden");
  RankProcesses& processes = round.processes();
  attempt(round, [&] {
    round.all_say("begun");
    processes.lives_until(1, choice.moment);
    processes.send_signal(1, SIGSTOP);
    const RankError error = round.error_of(0);
    round.expect(error.type == "Timeout", told(0, error));
    const std::string late =
        processes.wait_for_line(0, "deadline ", FaultRound::kTimeout);
    round.note_time(error, std::stoll(late.substr(late.find(' '))));
    const std::string grown =
        processes.wait_for_line(0, "grown ", FaultRound::kTimeout);
    constexpr long long kMostMebibytes = 48;  // the operation has 16
    round.expect(std::stoll(grown.substr(grown.find(' '))) <= kMostMebibytes,
                 "the memory of rank 0 has " + grown + " MiB");
    processes.send_signal(1, SIGCONT);
    round.expect_clean_end(0);
    round.expect_clean_end(1);
  });
  return close(round);
}

namespace {

std::vector<std::pair<std::size_t, std::size_t>> all_pairs() {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t first = 0; first < kAllCalls.size(); ++first)
    for (std::size_t second = first + 1; second < kAllCalls.size(); ++second)
      pairs.emplace_back(first, second);
  return pairs;
}

// The time in the rank's line that begins with `head`.
std::int64_t time_in(FaultRound& round, int rank, const std::string& head) {
  const std::string line =
      round.processes().wait_for_line(rank, head, FaultRound::kTimeout);
  return std::stoll(line.substr(head.size()));
}

// When the last rank made the call.
std::int64_t last_call(FaultRound& round, int number) {
  std::int64_t last = 0;
  for (int rank = 0; rank < round.ranks(); ++rank)
    last = std::max(last,
                    time_in(round, rank, fmt::format("calling {} ", number)));
  return last;
}

void watch_pair(FaultRound& round, int number,
                std::pair<std::size_t, std::size_t> pair) {
  const std::int64_t moment = last_call(round, number);
  for (int rank = 0; rank < round.ranks(); ++rank) {
    const RankError error = round.error_of(rank, number);
    round.note_time(error, moment);
    const auto names = [&](std::size_t call) {
      return error.message.find(
                 fmt::format("called:  {} #", name_of(kAllCalls[call]))) !=
             std::string::npos;
    };
    round.expect(
        error.type == "Mismatch" && names(pair.first) && names(pair.second),
        fmt::format("pair {}: {}", number, told(rank, error)));
  }
}

}  // namespace

int count_pairs() { return static_cast<int>(all_pairs().size()); }

Outcome inject_mismatch(const Injection& injection,
                        const std::vector<int>& pairs, std::size_t& survived) {
  Choice choice(injection);
  const auto all = all_pairs();
  std::string list;
  std::vector<std::pair<std::size_t, std::size_t>> chosen;
  for (const int pair : pairs) {
    chosen.push_back(all[static_cast<std::size_t>(pair)]);
    if (choice.random() % 2 == 0)
      std::swap(chosen.back().first, chosen.back().second);
    list += fmt::format("{}-{} ", chosen.back().first, chosen.back().second);
  }
  FaultRound round(choice.setting(injection, {"PAIRS=" + list}), "mismatch");
  survived = 0;
  attempt(round, [&] {
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const bool fine_before = round.complaints().empty();
      watch_pair(round, static_cast<int>(i), chosen[i]);
      survived += fine_before && round.complaints().empty();
    }
    for (int rank = 0; rank < round.ranks(); ++rank)
      round.expect_clean_end(rank);
  });
  return close(round);
}

namespace {

// A rank may have finished with the store and wait for a rank that has not.
bool comes_of_the_store(const RankError& error,
                        const std::vector<RankError>& all) {
  if (error.type == "NetworkError") return true;
  return error.type == "PeerFailure" && error.rank >= 0 &&
         all.at(static_cast<std::size_t>(error.rank)).type == "NetworkError";
}

}  // namespace

Outcome inject_store_death(const Injection& injection) {
  const Choice choice(injection);
  FaultRound round(choice.setting(injection), "without_store");
  attempt(round, [&] {
    round.all_say("begun");
    round.processes().lives_until(choice.victim, choice.moment);
    round.processes().stop_store();
    std::vector<RankError> errors;
    for (int rank = 0; rank < round.ranks(); ++rank) {
      const std::int64_t moment = time_in(round, rank, "worked on ");
      errors.push_back(round.error_of(rank));
      round.note_time(errors.back(), moment);
      round.expect_clean_end(rank);
    }
    for (int rank = 0; rank < round.ranks(); ++rank) {
      const RankError& error = errors[static_cast<std::size_t>(rank)];
      round.expect(comes_of_the_store(error, errors), told(rank, error));
    }
  });
  return close(round);
}

Outcome inject_store_death_in_forming(const Injection& injection) {
  const Choice choice(injection);
  FaultRound round(choice.setting(injection), "form");
  attempt(round, [&] {
    round.all_say("begun");
    round.processes().lives_until(choice.victim, choice.moment);
    const std::int64_t moment = monotonic_now();
    round.processes().stop_store();
    for (int rank = 0; rank < round.ranks(); ++rank) {
      const RankError error = round.error_of(rank);
      round.note_time(error, moment);
      const bool right = error.type == "NetworkError" ||
                         error.type == "Timeout" || error.type == "PeerFailure";
      round.expect(right, told(rank, error));
      round.expect_clean_end(rank);
    }
  });
  return close(round);
}

}  // namespace lockstep
