#include "apps/download/transfer.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <array>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "apps/download/base_address.h"
#include "lockstep/base/error.h"
#include "src/base/number_in.h"
#include "src/base/printable.h"
#include "src/base/version.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

constexpr int kAttempts = 3;
constexpr long kLeastBytesPerSecond = 1024;
constexpr long kMostRedirects = 5;
constexpr long kOk = 200;
constexpr long kPartialContent = 206;
constexpr long kForbidden = 403;
constexpr long kNotFound = 404;
constexpr long kRequestTimeout = 408;
constexpr long kRangeNotSatisfiable = 416;
constexpr long kTooManyRequests = 429;
constexpr long kServerError = 500;

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
      return status >= kServerError || status == kRequestTimeout ||
             status == kTooManyRequests;
    default:
      return false;
  }
}

std::string_view next_step(CURLcode result) {
  if (result == CURLE_PEER_FAILED_VERIFICATION ||
      result == CURLE_SSL_CACERT_BADFILE)
    return "bring the certificates of this machine up to date "
           "(update-ca-certificates), or name a file that has the server's "
           "authority in SSL_CERT_FILE";
  return "check the address and the network, or name another server with "
         "--from";
}

std::string describe_status(long status) {
  std::string_view meaning;
  if (status == kNotFound) meaning = " (not found)";
  if (status == kForbidden) meaning = " (forbidden)";
  return fmt::format("the server answered with status {}{}", status, meaning);
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

  std::uint64_t received() const { return received_; }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode result = curl_easy_setopt(handle_, option, value);
    LOCKSTEP_CHECK(result == CURLE_OK, curl_easy_strerror(result));
  }
  void look_at_source();
  void set_limits();
  void set_callbacks();
  CURLcode perform();
  void check_status() const;
  std::uint64_t read_header();
  void begin_body();
  std::uint64_t read_content_range();
  void receive(std::span<const std::byte> bytes);
  std::optional<std::string> missing();
  bool has_ended() const;
  bool has_no_more(CURLcode result) const;
  long status() const;
  std::string header(const char* name) const;
  std::string reason(CURLcode result) const;
  [[noreturn]] void refuse_shorter() const;
  [[noreturn]] void refuse_larger() const;
  [[noreturn]] void fail(CURLcode result) const;
  [[noreturn]] void fail(std::string_view what, std::string_view next) const;

  static std::size_t on_body(char* bytes, std::size_t size, std::size_t count,
                             void* attempt);
  static int on_progress(void* attempt, curl_off_t, curl_off_t, curl_off_t,
                         curl_off_t);

  CURL* handle_;
  const FileTransfer& transfer_;
  PartialFile& file_;
  std::uint64_t offset_;  // of the first byte that was asked for
  std::uint64_t received_ = 0;
  std::optional<std::uint64_t> total_{};  // of the whole file, if it is known
  bool is_local_ = false;
  bool in_body_ = false;
  std::array<char, CURL_ERROR_SIZE> text_{};
  std::exception_ptr error_{};  // of a callback; libcurl passes none through
};

// libcurl would wait at a pipe without an end.
void Attempt::look_at_source() {
  is_local_ = scheme_of(transfer_.address) == "file";
  if (!is_local_) return;
  const std::filesystem::path path = path_of(transfer_.address);
  std::error_code refused;
  if (std::filesystem::is_regular_file(path, refused))
    total_ = std::filesystem::file_size(path, refused);
  if (refused) fail(refused.message(), next_step(CURLE_OK));
  if (!total_) fail("it is not a regular file", next_step(CURLE_OK));
}

void Attempt::set_limits() {
  const auto timeout = static_cast<long>(transfer_.timeout.count());
  set(CURLOPT_CONNECTTIMEOUT, timeout);
  set(CURLOPT_LOW_SPEED_LIMIT, kLeastBytesPerSecond);
  set(CURLOPT_LOW_SPEED_TIME, timeout);
  set(CURLOPT_PROTOCOLS_STR, "http,https,file");
  set(CURLOPT_REDIR_PROTOCOLS_STR, redirect_protocols(transfer_.address));
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, kMostRedirects);
  if (!transfer_.certificates.empty())
    set(CURLOPT_CAINFO, transfer_.certificates.c_str());
}

void Attempt::set_callbacks() {
  set(CURLOPT_ERRORBUFFER, text_.data());
  set(CURLOPT_WRITEFUNCTION, &Attempt::on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  set(CURLOPT_XFERINFOFUNCTION, &Attempt::on_progress);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(this));
  set(CURLOPT_NOPROGRESS, 0L);
}

CURLcode Attempt::perform() {
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
  return result;
}

std::optional<std::string> Attempt::run() {
  look_at_source();
  const CURLcode result = perform();
  if (result == CURLE_OK) return missing();
  if (has_no_more(result)) {
    if (!is_local_) read_content_range();
    // The checksum shows whether it is the right file.
    if (total_ == file_.size()) return std::nullopt;
    refuse_shorter();
  }
  if (!may_pass(result, status())) fail(result);
  return reason(result);
}

// Whether the other end has nothing behind `offset_`.
bool Attempt::has_no_more(CURLcode result) const {
  return result == CURLE_BAD_DOWNLOAD_RESUME ||
         (result == CURLE_HTTP_RETURNED_ERROR && offset_ > 0 &&
          status() == kRangeNotSatisfiable);
}

// After an answer without an error: what the file still lacks, if anything.
std::optional<std::string> Attempt::missing() {
  if (!is_local_) check_status();
  if (!is_local_ && !in_body_) return "the server sent nothing";
  if (file_.size() == transfer_.most_bytes || has_ended()) return std::nullopt;
  return fmt::format("the server ended its answer after {} bytes",
                     file_.size());
}

// Whether the file ends where it ends now. An answer that says neither its
// length nor its end may have been cut.
bool Attempt::has_ended() const {
  if (total_) return file_.size() == *total_;
  long protocol = 0;
  curl_easy_getinfo(handle_, CURLINFO_HTTP_VERSION, &protocol);
  return status() == kOk && (protocol > CURL_HTTP_VERSION_1_1 ||
                             !header("Transfer-Encoding").empty());
}

long Attempt::status() const {
  long status = 0;
  curl_easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

// Of the last answer; "" without it.
std::string Attempt::header(const char* name) const {
  curl_header* found = nullptr;
  return curl_easy_header(handle_, name, 0, CURLH_HEADER, -1, &found) ==
                 CURLHE_OK
             ? found->value
             : "";
}

std::string Attempt::reason(CURLcode result) const {
  if (result == CURLE_HTTP_RETURNED_ERROR) return describe_status(status());
  const std::string_view text = text_.data();
  // Some texts have the address of a proxy, with its password before the "@".
  return printable(text.empty() || text.find('@') != text.npos
                       ? curl_easy_strerror(result)
                       : text);
}

void Attempt::fail(std::string_view what, std::string_view next) const {
  throw NetworkError(fmt::format("cannot download {}: {}\n  next:    {}",
                                 shown_address(transfer_.address), what, next));
}

void Attempt::fail(CURLcode result) const {
  if (result != CURLE_OPERATION_TIMEDOUT)
    fail(reason(result), next_step(result));
  throw Timeout(fmt::format(
      "cannot download {}: no connection, or less than 1 KiB per second, for "
      "{} s\n"
      "  next:    repeat the command, which goes on after the {} bytes that "
      "have arrived, or {}",
      shown_address(transfer_.address), transfer_.timeout.count(), file_.size(),
      kOtherServer));
}

void Attempt::check_status() const {
  const long code = status();
  if (code != kOk && code != kPartialContent)
    fail(describe_status(code), kOtherServer);
}

// Sets total_ and returns the first byte of the answer: "bytes 10-19/100",
// "bytes */100" or "bytes 10-19/*".
std::uint64_t Attempt::read_content_range() {
  constexpr std::string_view kUnit = "bytes ";
  const std::string text = header("Content-Range");
  const std::size_t dash = text.find('-');
  const std::size_t slash = text.find('/');
  if (slash != text.npos)
    total_ = number_in<std::uint64_t>(std::string_view(text).substr(slash + 1));
  if (dash == text.npos || !text.starts_with(kUnit)) return 0;
  return number_in<std::uint64_t>(
             std::string_view(text).substr(kUnit.size(), dash - kUnit.size()))
      .value_or(0);
}

// Sets total_, if the header says it; returns the first byte of the answer.
std::uint64_t Attempt::read_header() {
  check_status();
  if (status() == kPartialContent) return read_content_range();
  curl_off_t length = -1;
  curl_easy_getinfo(handle_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  if (length >= 0) total_ = static_cast<std::uint64_t>(length);
  return 0;
}

// The header has arrived. A server that has no parts of files, or no longer
// this file, sends it from the beginning.
void Attempt::begin_body() {
  in_body_ = true;
  // libcurl reads the part of a local file itself.
  const std::uint64_t first = is_local_ ? offset_ : read_header();
  if (total_ && *total_ > transfer_.most_bytes) refuse_larger();
  if (first == offset_) return;
  if (total_ && *total_ < offset_) refuse_shorter();
  file_.restart();
  if (status() == kPartialContent)
    fail("the server sent another part of the file than it was asked for",
         "repeat the command, which asks for the whole file");
}

void Attempt::refuse_shorter() const {
  fail(fmt::format("the file there is not longer than the {} bytes that have "
                   "arrived",
                   offset_),
       fmt::format("delete {}, or {}", printable(file_.path().string()),
                   kOtherServer));
}

void Attempt::refuse_larger() const {
  fail(fmt::format("it is larger than the {} bytes of the right file",
                   transfer_.most_bytes),
       kOtherServer);
}

void Attempt::receive(std::span<const std::byte> bytes) {
  if (!in_body_) begin_body();
  if (file_.size() + bytes.size() > transfer_.most_bytes) {
    file_.restart();
    refuse_larger();
  }
  file_.append(bytes);
  received_ += bytes.size();
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

[[noreturn]] void give_up(const FileTransfer& transfer, const PartialFile& file,
                          std::string_view reason) {
  throw NetworkError(fmt::format(
      "cannot download {}: {}, {} times\n"
      "  next:    repeat the command, which goes on after the {} bytes that "
      "have arrived, or {}",
      shown_address(transfer.address), reason, kAttempts, file.size(),
      kOtherServer));
}

}  // namespace

const char* redirect_protocols(const std::string& address) {
  return scheme_of(address) == "https" ? "https" : "http,https";
}

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

std::uint64_t Connection::fetch(const FileTransfer& transfer,
                                PartialFile& file) {
  const Backoff beginning(std::chrono::milliseconds(200),
                          std::chrono::milliseconds(1000));
  Backoff backoff = beginning;
  std::uint64_t longest = file.size();
  std::uint64_t received = 0;
  int in_vain = 0;
  for (;;) {
    Attempt request(handle_.get(), transfer, file);
    const auto temporary = request.run();
    received += request.received();
    if (!temporary) return received;
    ++in_vain;
    if (file.size() > longest) {
      longest = file.size();
      in_vain = 0;
      backoff = beginning;
    }
    if (in_vain == kAttempts) give_up(transfer, file, *temporary);
    backoff.wait(Deadline::never());
  }
}

}  // namespace lockstep
