#include "fault_round.h"

#include <fmt/format.h>

#include <sstream>

namespace lockstep {
namespace {

std::vector<std::string> variables_of(const RoundSetting& setting) {
  std::vector<std::string> variables = setting.variables;
  variables.push_back("LOCKSTEP_BACKEND=" + setting.backend);
  variables.push_back(fmt::format("SEED={}", setting.seed));
  return variables;
}

}  // namespace

FaultRound::FaultRound(const RoundSetting& setting, const std::string& name)
    : setting_(setting),
      processes_(std::make_unique<RankProcesses>(
          setting.ranks, std::vector<std::string>{LOCKSTEP_FAULT_RANK, name},
          variables_of(setting))) {}

void FaultRound::all_say(const std::string& text) {
  for (int rank = 0; rank < ranks(); ++rank)
    processes_->wait_for_line(rank, text, kTimeout);
}

RankError FaultRound::error_of(int rank, int number) {
  const std::string end = fmt::format("end of error {}", number);
  processes_->wait_for_line(rank, end, kTimeout);
  const std::string& output = processes_->output(rank);
  const std::string head = fmt::format("error {} ", number);
  std::size_t begin = output.find(head);
  if (begin != 0) begin = output.find("\n" + head) + 1;
  std::istringstream line(output.substr(begin + head.size()));
  RankError error;
  line >> error.type >> error.rank >> error.at;
  const std::size_t text = output.find('\n', begin) + 1;
  error.message = output.substr(text, output.find("\n" + end, text) - text);
  return error;
}

void FaultRound::expect(bool right, const std::string& complaint) {
  if (!right) complaints_ += complaint + "\n";
}

void FaultRound::expect_clean_end(int rank) {
  constexpr int kGotAnError = 10;
  const int code = processes_->wait_for_end(rank, kTimeout);
  const std::string& output = processes_->output(rank);
  std::string leaks;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("left ") && line != "left nothing")
      leaks += ", " + line;
    read_results(line);
  }
  expect(code == kGotAnError && leaks.empty(),
         fmt::format("rank {} ended with code {}{}:\n{}", rank, code, leaks,
                     output));
}

// Parses "… checked N wrong M".
void FaultRound::read_results(const std::string& line) {
  constexpr std::string_view kHead = "checked ";
  const std::size_t begin = line.find(kHead);
  if (begin == std::string::npos) return;
  std::istringstream text(line.substr(begin + kHead.size()));
  std::size_t checked = 0, wrong = 0;
  std::string word;
  text >> checked >> word >> wrong;
  expect(!text.fail(), "what is " + line);
  checked_ += checked;
  expect(wrong == 0,
         fmt::format("{} operations ended without an error and with "
                     "wrong elements",
                     wrong));
}

void FaultRound::note_time(const RankError& error, std::int64_t moment) {
  milliseconds_.push_back(static_cast<double>(error.at - moment) / 1e6);
}

std::string FaultRound::finish() {
  processes_.reset();
  if (complaints_.empty()) return "";
  return fmt::format("backend {}, {} ranks, seed {}:\n{}", setting_.backend,
                     setting_.ranks, setting_.seed, complaints_);
}

std::int64_t monotonic_now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void attempt(FaultRound& round, const std::function<void()>& steps) {
  try {
    steps();
  } catch (const std::exception& error) {
    round.expect(false, error.what());
  }
}

}  // namespace lockstep
