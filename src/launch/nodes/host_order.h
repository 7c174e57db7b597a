// What `lockstep run -H` tells the launcher that it starts on a host: one line
// of JSON on the launcher's standard input. The line stays open: signals
// follow, each as its number on a line, and the end of input counts as SIGTERM.
//
// Errors:  InvalidArgument for a malformed order, or one of another version.
#pragma once

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"
#include "src/net/wake_up.h"

namespace lockstep {

struct HostOrder {
  std::string version;
  std::string token;          // LOCKSTEP_TOKEN
  std::string host = {};      // as the user named it
  std::string endpoint = {};  // of the rendezvous: HOST:PORT
  std::string directory;      // where the user started the job
  std::map<std::string, std::string> environment;  // to set
  std::vector<std::string> arguments;              // after `lockstep run`
  int node_rank = 0;
  int slots = 0;  // ranks; 0: as the arguments say
  int least = 1;  // hosts
  int most = 1;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostOrder, version, token, host, endpoint,
                                   directory, environment, arguments, node_rank,
                                   slots, least, most)

// The order's line. InvalidArgument for text that is not UTF-8.
std::string encode_order(const HostOrder& order);

// Reads one line and no byte more. Timeout after the deadline.
HostOrder read_order(int descriptor, Deadline deadline);

// Reads the order of this process from standard input, which is empty
// afterwards: `input` then has the rest. Enters the order's directory and sets
// its variables, so call it before any thread starts. Also SystemError where
// this host has no such directory.
HostOrder take_order(FileDescriptor& input);

// The variables of `environment` ("NAME=value") that ranks on another host
// should have too: those of LibTorch's and Lockstep's libraries, and those that
// `more` names, as NAME or NAME=value.
std::map<std::string, std::string> environment_for_hosts(
    const std::vector<std::string>& environment,
    const std::vector<std::string>& more);

// Sends this process the signals that come on `input`, from a thread of its
// own. One SignalWatch may live beside it.
class OrderedSignals {
 public:
  explicit OrderedSignals(FileDescriptor input);
  // Whether the input has ended.
  bool have_ended() const { return ended_.load(); }
  ~OrderedSignals();
  OrderedSignals(const OrderedSignals&) = delete;
  OrderedSignals& operator=(const OrderedSignals&) = delete;

 private:
  void pass_on();

  FileDescriptor input_;
  WakeUp ends_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace lockstep
