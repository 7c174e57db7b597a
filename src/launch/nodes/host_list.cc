#include "src/launch/nodes/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int kMostSlots = 1024;
constexpr std::string_view kSlots = "slots=";

[[noreturn]] void refuse_entry(std::string_view source, std::string_view entry,
                               std::string_view problem) {
  throw InvalidArgument(fmt::format("{}: \"{}\" {}", source, entry, problem));
}

std::optional<int> slots_in(std::string_view text) {
  int slots = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, slots);
  if (error != std::errc() || stop != end || slots < 1 || slots > kMostSlots)
    return std::nullopt;
  return slots;
}

// ssh takes a word that begins with "-" for an option, and a shell may read it.
bool is_name(std::string_view host) {
  return !host.empty() && !host.starts_with('-') &&
         std::ranges::all_of(host, [](char letter) {
           return (letter >= 'a' && letter <= 'z') ||
                  (letter >= 'A' && letter <= 'Z') ||
                  (letter >= '0' && letter <= '9') ||
                  std::string_view("._-@%:").find(letter) !=
                      std::string_view::npos;
         });
}

// Where the slots begin behind the host's name: at ":2", or at the end.
std::size_t end_of_name(std::string_view entry) {
  const std::size_t bracket = entry.find(']');
  if (bracket != std::string_view::npos) return bracket + 1;
  const std::size_t colon = entry.find(':');
  const bool is_ipv6 =
      colon != std::string_view::npos && entry.rfind(':') != colon;
  return is_ipv6 ? entry.size() : std::min(colon, entry.size());
}

HostSlots parse_entry(std::string_view source, std::string_view entry) {
  const std::size_t end = end_of_name(entry);
  std::string_view name = entry.substr(0, end);
  if (name.starts_with('[') && name.ends_with(']'))
    name = name.substr(1, name.size() - 2);
  if (!is_name(name))
    refuse_entry(source, entry,
                 "does not name a host; write HOST or HOST:SLOTS");
  HostSlots host{.host = std::string(name)};
  if (end < entry.size()) {
    const auto slots = entry[end] == ':' ? slots_in(entry.substr(end + 1))
                                         : std::optional<int>();
    if (!slots)
      refuse_entry(
          source, entry,
          fmt::format("must end with a number of ranks from 1 to {}, as in "
                      "{}:2",
                      kMostSlots, name));
    host.slots = *slots;
  }
  return host;
}

void add(std::string_view source, HostSlots host,
         std::vector<HostSlots>& hosts) {
  if (std::ranges::find(hosts, host.host, &HostSlots::host) != hosts.end())
    refuse_entry(
        source, host.host,
        fmt::format("is named twice; give it the sum of its ranks, as in "
                    "{}:4",
                    host.host));
  hosts.push_back(std::move(host));
}

// A line without its comment.
void add_line(std::string_view source, const std::string& line,
              std::vector<HostSlots>& hosts) {
  std::istringstream words(line.substr(0, line.find('#')));
  std::string entry;
  std::string slots;
  std::string more;
  if (!(words >> entry)) return;
  HostSlots host = parse_entry(source, entry);
  if (words >> slots) {
    const auto number =
        host.slots == 0 && slots.starts_with(kSlots) && !(words >> more)
            ? slots_in(std::string_view(slots).substr(kSlots.size()))
            : std::nullopt;
    if (!number)
      refuse_entry(source, line,
                   "must be HOST, HOST:SLOTS or HOST slots=SLOTS");
    host.slots = *number;
  }
  add(source, std::move(host), hosts);
}

}  // namespace

std::vector<HostSlots> parse_host_list(std::string_view text) {
  constexpr std::string_view kSource = "-H";
  std::vector<HostSlots> hosts;
  for (;;) {
    const std::size_t comma = text.find(',');
    add(kSource, parse_entry(kSource, text.substr(0, comma)), hosts);
    if (comma == std::string_view::npos) return hosts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<HostSlots> read_host_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw SystemError("--hostfile: cannot read " + path, errno);
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);)
    add_line(fmt::format("{}, line {}", path, ++number), line, hosts);
  if (file.bad()) throw SystemError("--hostfile: cannot read " + path, errno);
  if (hosts.empty()) throw InvalidArgument("--hostfile: " + path + " is empty");
  return hosts;
}

}  // namespace lockstep
