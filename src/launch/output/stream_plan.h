// Which streams of which workers go to the screen, and which to a log: what
// torchrun's --redirects, --tee and --local-ranks-filter choose.
//
// Threads: any thread.
// Errors:  InvalidArgument for text of another form.
// Source:  torchrun's flags: 0 means no stream, 1 standard output, 2 standard
//          error, 3 both; "0:1,1:3" says it by local rank.
#pragma once

#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep {

// Each bit is a stream.
enum StreamSet : unsigned char {
  kNoStream = 0,
  kOutStream = 1,
  kErrStream = 2,
  kBothStreams = 3,
};

class StreamChoice {
 public:
  // `flag` is for messages.
  static StreamChoice parse(std::string_view flag, std::string_view text);

  StreamSet of(int local_rank) const;

 private:
  StreamSet all_ = kNoStream;
  std::map<int, StreamSet> by_local_rank_;
};

struct StreamPlan {
  // Without both, a log has both streams.
  std::optional<StreamChoice> redirects;  // to the log only
  std::optional<StreamChoice> tee;        // to the log and the screen
  // The workers that the screen shows; empty: all.
  std::vector<int> shown_local_ranks;
  // Whether the screen shows equal lines of several workers once; nothing:
  // where it is a terminal.
  std::optional<bool> fold{};

  StreamSet logged(int local_rank) const;
  StreamSet shown(int local_rank) const;
};

// "0,2": local ranks.
std::vector<int> parse_local_ranks(std::string_view flag,
                                   std::string_view text);

}  // namespace lockstep
