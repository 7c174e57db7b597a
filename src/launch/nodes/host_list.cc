#include "src/launch/nodes/host_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"

namespace lockstep {
namespace {

constexpr int kMostSlots = 1024;
constexpr std::string_view kSlots = "slots=";

[[noreturn]] void refuse_entry(std::string_view source, std::string_view entry,
                               std::string_view problem) {
  throw InvalidArgument(fmt::format("{}: \"{}\" {}", source, entry, problem));
}

std::optional<int> slots_in(std::string_view text) {
  const auto slots = number_in<int>(text);
  if (!slots || *slots < 1 || *slots > kMostSlots) return std::nullopt;
  return slots;
}

bool consists_of(std::string_view text, std::string_view more) {
  return std::ranges::all_of(text, [&](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           more.find(static_cast<char>(letter)) != std::string_view::npos;
  });
}

bool is_ipv6(std::string_view number) {
  number = number.substr(0, number.find('%'));
  return number.find_first_not_of("0123456789abcdefABCDEF:.") ==
         std::string_view::npos;
}

// ssh takes a word that begins with "-" for an option, and a shell may read it.
bool is_name(std::string_view host) {
  const std::size_t at = host.find('@');
  const bool has_user = at != std::string_view::npos;
  const std::string_view user = has_user ? host.substr(0, at) : "user";
  const std::string_view name = has_user ? host.substr(at + 1) : host;
  return !user.empty() && !name.empty() && !host.starts_with('-') &&
         consists_of(user, "._-") && consists_of(name, "._-%:") &&
         (name.find(':') == std::string_view::npos || is_ipv6(name));
}

// Where the slots begin behind the host's name: at ":2", or at the end.
std::size_t end_of_name(std::string_view entry) {
  const std::size_t bracket = entry.find(']');
  if (bracket != std::string_view::npos) return bracket + 1;
  const std::size_t colon = entry.find(':');
  const bool has_several =
      colon != std::string_view::npos && entry.rfind(':') != colon;
  return has_several ? entry.size() : std::min(colon, entry.size());
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

int to_lower(unsigned char letter) { return std::tolower(letter); }

void add(std::string_view source, HostSlots host,
         std::vector<HostSlots>& hosts) {
  const auto is_same = [&](const HostSlots& other) {
    return std::ranges::equal(host.host, other.host, {}, to_lower, to_lower);
  };
  if (std::ranges::any_of(hosts, is_same))
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
  if (!file)
    throw InvalidArgument(fmt::format("--hostfile: cannot read {}: {}", path,
                                      std::strerror(errno)));
  std::vector<HostSlots> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);)
    add_line(fmt::format("{}, line {}", path, ++number), line, hosts);
  if (file.bad()) throw SystemError("--hostfile: cannot read " + path, errno);
  if (hosts.empty()) throw InvalidArgument("--hostfile: " + path + " is empty");
  return hosts;
}

}  // namespace lockstep
