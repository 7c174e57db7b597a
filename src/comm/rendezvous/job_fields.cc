#include "src/comm/rendezvous/job_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "src/base/printable.h"
#include "src/base/report_text.h"

namespace lockstep {
namespace {

constexpr char kNameEnd = '\x1f';

// Of many differences the first are named.
constexpr std::size_t kMost = 8;

std::string value_in(const std::vector<JobField>& fields,
                     const std::string& name) {
  const auto found = std::ranges::find(fields, name, &JobField::name);
  return found == fields.end() ? "not given" : found->value;
}

// The ranks that have one value of a field.
struct Holders {
  std::string value;
  std::vector<int> ranks{};
  std::vector<std::string> hosts{};
};

// "rank 0", "ranks 1, 2, 3 (host0, host1)".
std::string name_of(const Holders& holders) {
  std::string text = name_ranks(holders.ranks);
  if (!holders.hosts.empty())
    text += fmt::format(" ({})", list_some(holders.hosts));
  return text;
}

void add(Holders& holders, const FieldsOfRank& rank) {
  holders.ranks.push_back(rank.rank);
  if (rank.host.empty() || std::ranges::count(holders.hosts, rank.host) > 0)
    return;
  holders.hosts.push_back(rank.host);
}

// "" if all agree.
std::string difference_in(std::span<const FieldsOfRank> ranks,
                          const std::string& name) {
  std::vector<Holders> values;
  for (const FieldsOfRank& rank : ranks) {
    const std::string value = value_in(rank.fields, name);
    auto found = std::ranges::find(values, value, &Holders::value);
    if (found == values.end()) found = values.insert(values.end(), {value});
    add(*found, rank);
  }
  if (values.size() < 2) return "";
  std::string text = name + " is ";
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += i + 1 == values.size() ? " and " : ", ";
    text += fmt::format("{} on {}", values[i].value, name_of(values[i]));
  }
  return text;
}

}  // namespace

// printable() leaves neither kNameEnd nor a line's end.
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
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t end = line.find(kNameEnd);
    fields.push_back(
        {std::string(line.substr(0, end)), std::string(line.substr(end + 1))});
  }
  return fields;
}

std::vector<std::string> differences_in(std::span<const FieldsOfRank> ranks) {
  std::vector<std::string> seen;
  std::vector<std::string> differences;
  for (const FieldsOfRank& rank : ranks)
    for (const JobField& field : rank.fields) {
      if (std::ranges::find(seen, field.name) != seen.end()) continue;
      seen.push_back(field.name);
      std::string difference = difference_in(ranks, field.name);
      if (!difference.empty()) differences.push_back(std::move(difference));
    }
  return differences;
}

std::string join_differences(const std::vector<std::string>& differences) {
  const std::span shown(differences.data(),
                        std::min(differences.size(), kMost));
  std::string text = fmt::format("{}", fmt::join(shown, "\n  and:     "));
  if (differences.size() > kMost)
    text +=
        fmt::format("\n  and:     {} more differ", differences.size() - kMost);
  return text;
}

}  // namespace lockstep
