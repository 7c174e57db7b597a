#include "src/comm/hybrid/host_map.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/unix_mark.h"

namespace lockstep {
namespace {

// Sharing memory needs the same kernel, the same network namespace for the
// socket through which ranks connect, and the same process namespace in which
// they watch each other. Two machines may have the same text: the boot id may
// be unreadable, or copied with the machine.
std::string host_of_this_process() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  for (const char* space : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    std::error_code ignored;
    id += ' ';
    id += std::filesystem::read_symlink(space, ignored).string();
  }
  return id;
}

// Begins the card of a rank whose host has a name from the user.
constexpr char kNamed = '=';

bool is_named(const std::string& card) { return card.starts_with(kNamed); }

// A rank's card is kNamed and the name of its host, or else its mark, a blank,
// and the host of its process.
std::string mark_of(const std::string& card) {
  return card.substr(0, card.find(' '));
}

std::string host_of(const std::string& card) {
  return is_named(card) ? card : card.substr(card.find(' '));
}

// Null where the kernel refuses it; then the ranks of this host share no
// memory either.
std::unique_ptr<UnixMark> make_mark() try {
  return std::make_unique<UnixMark>();
} catch (const SystemError& error) {
  log(LogLevel::kDebug, error.what());
  return nullptr;
}

// Whether cards alone may mislead: two ranks describe the same host.
bool is_doubtful(const std::vector<std::string>& cards) {
  std::set<std::string> seen;
  return std::ranges::any_of(cards, [&](const std::string& card) {
    return !is_named(card) && !seen.insert(host_of(card)).second;
  });
}

// The first rank that describes the same host as rank `rank`, and whose mark
// this rank finds.
int first_on_host_of(int rank, const std::vector<std::string>& cards) {
  const std::string& own = cards[static_cast<std::size_t>(rank)];
  for (int other = 0; other < rank; ++other) {
    const std::string& card = cards[static_cast<std::size_t>(other)];
    if (host_of(card) == host_of(own) &&
        (is_named(own) || is_marked_here(mark_of(card))))
      return other;
  }
  return rank;
}

}  // namespace

int HostMap::fewest() const {
  return static_cast<int>(
      std::ranges::min_element(ranks_of, {}, [](const auto& ranks) {
        return ranks.size();
      })->size());
}

int HostMap::most() const {
  return static_cast<int>(
      std::ranges::max_element(ranks_of, {}, [](const auto& ranks) {
        return ranks.size();
      })->size());
}

HostMap map_hosts(const std::vector<std::string>& ids) {
  HostMap map;
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [entry, is_new] = numbers.try_emplace(ids[rank], map.hosts());
    if (is_new) map.ranks_of.emplace_back();
    auto& ranks = map.ranks_of[static_cast<std::size_t>(entry->second)];
    map.host_of.push_back(entry->second);
    map.index_of.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  return map;
}

HostMap find_hosts(int rank, const std::string& host_id,
                   const GatherTexts& gather) {
  // Until the end: all ranks have looked for it once they have told each other
  // what they found.
  std::unique_ptr<UnixMark> mark;
  std::string mine = kNamed + host_id;
  if (host_id.empty()) {
    mark = make_mark();
    mine = (mark ? mark->name() : "none") + ' ' + host_of_this_process();
  }
  std::vector<std::string> cards = gather("host", mine);
  if (is_doubtful(cards))
    return map_hosts(
        gather("host/first", std::to_string(first_on_host_of(rank, cards))));
  for (std::string& card : cards) card = host_of(card);
  return map_hosts(cards);
}

}  // namespace lockstep
