#include "src/download/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <optional>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/base/printable.h"
#include "src/base/version.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

constexpr int kAttempts = 3;
constexpr long kLeastBytesPerSecond = 1024;
constexpr long kMostRedirects = 5;
constexpr long kPartialContent = 206;
constexpr long kRangeNotSatisfiable = 416;

// What a server says and does may be temporary.
bool may_pass(CURLcode result, long status) {
  switch (result) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    case CURLE_HTTP_RETURNED_ERROR:
      return status >= 500;
    default:
      return false;
  }
}

// One request and its answer.
class Attempt {
 public:
  Attempt(CURL* handle, const FileTransfer& transfer, PartialFile& file)
      : handle_(handle),
        transfer_(transfer),
        file_(file),
        offset_(file.size()) {}

  // Nothing when the file is complete; otherwise what went wrong, if it may
  // pass.
  std::optional<std::string> run();

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode result = curl_easy_setopt(handle_, option, value);
    LOCKSTEP_CHECK(result == CURLE_OK, curl_easy_strerror(result));
  }
  void set_limits();
  void set_callbacks();
  void begin_body();
  void receive(std::span<const std::byte> bytes);
  long status() const;
  std::string reason(CURLcode result) const;
  [[noreturn]] void fail(CURLcode result) const;

  static std::size_t on_body(char* bytes, std::size_t size, std::size_t count,
                             void* attempt);
  static int on_progress(void* attempt, curl_off_t, curl_off_t, curl_off_t,
                         curl_off_t);

  CURL* handle_;
  const FileTransfer& transfer_;
  PartialFile& file_;
  std::uint64_t offset_;  // of the first byte that was asked for
  bool in_body_ = false;
  std::array<char, CURL_ERROR_SIZE> text_{};
  std::exception_ptr error_{};  // of a callback; libcurl passes none through
};

void Attempt::set_limits() {
  const auto patience = static_cast<long>(transfer_.patience.count());
  set(CURLOPT_CONNECTTIMEOUT, patience);
  set(CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  set(CURLOPT_LOW_SPEED_TIME, patience);
  set(CURLOPT_PROTOCOLS_STR, "http,https,file");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, kMostRedirects);
}

void Attempt::set_callbacks() {
  set(CURLOPT_ERRORBUFFER, text_.data());
  set(CURLOPT_WRITEFUNCTION, &Attempt::on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(CURLOPT_XFERINFOFUNCTION, &Attempt::on_progress);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(this));
  set(CURLOPT_NOPROGRESS, 0L);
}

std::optional<std::string> Attempt::run() {
  curl_easy_reset(handle_);  // keeps the connection
  const std::string agent = "lockstep/" + std::string(version());
  const std::string range = fmt::format("{}-", offset_);
  set(CURLOPT_URL, transfer_.address.c_str());
  set(CURLOPT_USERAGENT, agent.c_str());
  set(CURLOPT_FAILONERROR, 1L);
  if (offset_ > 0) set(CURLOPT_RANGE, range.c_str());
  set_limits();
  set_callbacks();
  const CURLcode result = curl_easy_perform(handle_);
  // The buffer ends with this object.
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  if (error_) std::rethrow_exception(error_);
  if (result == CURLE_OK) return std::nullopt;
  // The file had been complete; its checksum shows whether it was the right
  // one.
  if (result == CURLE_HTTP_RETURNED_ERROR && offset_ > 0 &&
      status() == kRangeNotSatisfiable)
    return std::nullopt;
  if (!may_pass(result, status())) fail(result);
  return reason(result);
}

long Attempt::status() const {
  long status = 0;
  curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

std::string Attempt::reason(CURLcode result) const {
  if (result == CURLE_HTTP_RETURNED_ERROR)
    return fmt::format("the server answered with status {}{}", status(),
                       status() == 404   ? " (not found)"
                       : status() == 403 ? " (forbidden)"
                                         : "");
  return printable(text_.front() != '\0' ? text_.data()
                                         : curl_easy_strerror(result));
}

void Attempt::fail(CURLcode result) const {
  const auto text = [&](std::string_view what, std::string_view next) {
    return fmt::format("cannot download {}: {}\n  next:    {}",
                       printable(transfer_.address), what, next);
  };
  if (result == CURLE_OPERATION_TIMEDOUT)
    throw Timeout(text(
        fmt::format("no connection, or less than 1 KiB per second, for {} s",
                    transfer_.patience.count()),
        fmt::format("repeat the command, which goes on after the {} bytes that "
                    "have arrived, or name another server with --from",
                    file_.size())));
  throw NetworkError(text(
      reason(result),
      "check the address and the network, or name another server with --from"));
}

// The header has arrived. A server that has no parts of files, or no longer
// this file, sends it from the beginning.
void Attempt::begin_body() {
  in_body_ = true;
  const long code = status();
  if (code == 0) return;  // a file, of which libcurl reads the part itself
  if (code != 200 && code != kPartialContent)
    throw NetworkError(
        fmt::format("cannot download {}: the server answered with status {}\n"
                    "  next:    name another server with --from",
                    printable(transfer_.address), code));
  curl_header* header = nullptr;
  std::uint64_t first = 0;
  const bool in_part = code == kPartialContent &&
                       curl_easy_header(handle_, "Content-Range", 0,
                                        CURLH_HEADER, -1, &header) == CURLHE_OK;
  if (in_part) {
    const std::string_view text = header->value;
    const std::size_t digits =
        std::min(text.find_first_of("0123456789"), text.size());
    std::from_chars(text.data() + digits, text.data() + text.size(), first);
  }
  if (in_part && first == offset_) return;
  file_.restart();
  if (code == kPartialContent)
    throw NetworkError(fmt::format(
        "cannot download {}: the server sent another part of the file than it "
        "was asked for\n"
        "  next:    repeat the command, which asks for the whole file",
        printable(transfer_.address)));
}

void Attempt::receive(std::span<const std::byte> bytes) {
  if (!in_body_) begin_body();
  if (file_.size() + bytes.size() > transfer_.most_bytes) {
    file_.restart();
    throw NetworkError(fmt::format(
        "cannot download {}: it is larger than the {} bytes of the right file\n"
        "  next:    name another server with --from",
        printable(transfer_.address), transfer_.most_bytes));
  }
  file_.append(bytes);
}

std::size_t Attempt::on_body(char* bytes, std::size_t size, std::size_t count,
                             void* attempt) {
  auto& self = *static_cast<Attempt*>(attempt);
  try {
    self.receive(std::as_bytes(std::span(bytes, size * count)));
    return size * count;
  } catch (...) {
    self.error_ = std::current_exception();
    return CURL_WRITEFUNC_ERROR;
  }
}

int Attempt::on_progress(void* attempt, curl_off_t, curl_off_t, curl_off_t,
                         curl_off_t) {
  auto& self = *static_cast<Attempt*>(attempt);
  try {
    if (self.transfer_.on_progress)
      self.transfer_.on_progress(self.file_.size());
    return 0;
  } catch (...) {
    self.error_ = std::current_exception();
    return 1;
  }
}

}  // namespace

Connection::Connection() {
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    throw Error("libcurl does not start\n  next:    check its installation");
  handle_.reset(curl_easy_init());
  LOCKSTEP_CHECK(handle_ != nullptr, "curl_easy_init");
}

void Connection::Close::operator()(void* handle) const {
  curl_easy_cleanup(handle);
  curl_global_cleanup();
}

void Connection::fetch(const FileTransfer& transfer, PartialFile& file) {
  constexpr std::chrono::milliseconds kFirst{200};
  constexpr std::chrono::milliseconds kLongest{1000};
  Backoff backoff(kFirst, kLongest);
  std::string reason;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) backoff.wait(Deadline::never());
    const auto temporary = Attempt(handle_.get(), transfer, file).run();
    if (!temporary) return;
    reason = *temporary;
  }
  throw NetworkError(fmt::format(
      "cannot download {}: {}, {} times\n"
      "  next:    repeat the command, which goes on after the {} bytes that "
      "have arrived, or name another server with --from",
      printable(transfer.address), reason, kAttempts, file.size()));
}

}  // namespace lockstep
