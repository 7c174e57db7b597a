#include "src/comm/group/same_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "src/base/printable.h"
#include "src/base/report_text.h"
#include "src/comm/group/same_text.h"

namespace lockstep {
namespace {

constexpr char kNameEnd = '\x1f';

// One line per field; printable() leaves neither kNameEnd nor a line's end.
std::string text_of(std::span<const JobField> fields) {
  std::string text;
  for (const JobField& field : fields)
    text += printable(field.name) + kNameEnd + printable(field.value) + '\n';
  return text;
}

std::vector<JobField> fields_of(std::string_view text) {
  std::vector<JobField> fields;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    const std::size_t end = line.find(kNameEnd);
    fields.push_back(
        {std::string(line.substr(0, end)), std::string(line.substr(end + 1))});
  }
  return fields;
}

std::string value_in(const std::vector<JobField>& fields,
                     const std::string& name) {
  const auto found = std::ranges::find(fields, name, &JobField::name);
  return found == fields.end() ? "not given" : found->value;
}

using Jobs = std::vector<std::vector<JobField>>;  // by rank

// "--lr is 0.1 on rank 0 and 0.001 on rank 1", or "" if all agree.
std::string difference_in(const Jobs& jobs, const std::string& name) {
  std::vector<std::pair<std::string, std::vector<int>>> values;
  for (std::size_t rank = 0; rank < jobs.size(); ++rank) {
    const std::string value = value_in(jobs[rank], name);
    auto found = std::ranges::find(values, value,
                                   [](const auto& each) { return each.first; });
    if (found == values.end()) found = values.insert(values.end(), {value, {}});
    found->second.push_back(static_cast<int>(rank));
  }
  if (values.size() == 1) return "";
  std::string text = name + " is ";
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " and " : ", ";
    text +=
        fmt::format("{} on {}", values[i].first, name_ranks(values[i].second));
  }
  return text;
}

// Of all fields, in the order in which the ranks name them.
std::vector<std::string> differences_in(const Jobs& jobs) {
  std::vector<std::string> seen;
  std::vector<std::string> differences;
  for (const auto& job : jobs)
    for (const JobField& field : job) {
      if (std::ranges::find(seen, field.name) != seen.end()) continue;
      seen.push_back(field.name);
      std::string difference = difference_in(jobs, field.name);
      if (!difference.empty()) differences.push_back(std::move(difference));
    }
  return differences;
}

}  // namespace

void check_same_job(ProcessGroup& group, std::span<const JobField> fields) {
  const auto texts = texts_if_different(group, text_of(fields));
  if (texts.empty()) return;
  Jobs jobs;
  for (const std::string& text : texts) jobs.push_back(fields_of(text));
  const std::vector<std::string> differences = differences_in(jobs);
  std::string message = "the ranks were started for different jobs: ";
  message += differences.empty() ? "the order of their fields differs"
                                 : differences.front();
  constexpr std::size_t kMost = 8;
  for (std::size_t i = 1; i < std::min(differences.size(), kMost); ++i)
    message += "\n  and:     " + differences[i];
  if (differences.size() > kMost)
    message +=
        fmt::format("\n  and:     {} more differ", differences.size() - kMost);
  throw DifferentJobs(
      message +
      "\n  likely:  the ranks were started with different flags or data, or "
      "two jobs use one MASTER_PORT"
      "\n  next:    start every rank with the same flags, and each job with a "
      "port of its own");
}

}  // namespace lockstep
