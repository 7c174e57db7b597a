#include "apps/download/base_address.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kSchemes{"http", "https", "file"};

class ParsedAddress {
 public:
  explicit ParsedAddress(const std::string& address)
      : parsed_(curl_url(), curl_url_cleanup) {
    LOCKSTEP_CHECK(parsed_ != nullptr, "curl_url");
    result_ = curl_url_set(parsed_.get(), CURLUPART_URL, address.c_str(), 0);
  }

  CURLUcode result() const { return result_; }

  // "" for a part that the address lacks.
  std::string part(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(parsed_.get(), part, &text, flags) != CURLUE_OK) return "";
    const std::unique_ptr<char, decltype(&curl_free)> owned(text, curl_free);
    return owned.get();
  }

  void clear(CURLUPart part) { curl_url_set(parsed_.get(), part, nullptr, 0); }

 private:
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed_;
  CURLUcode result_;
};

bool is_path(const std::string& base) {
  std::error_code ignored;
  return base.starts_with('/') || base.starts_with('.') ||
         (base.find(':') == base.npos && fs::exists(base, ignored));
}

// What is wrong with it; "" if nothing is.
std::string problem_of(const std::string& base) {
  if (base.find_first_of("?#") != base.npos)
    return "has a \"?\" or a \"#\" in it: write %3F or %23";
  if (base.find(' ') != base.npos) return "has a blank in it: write %20";
  const ParsedAddress parsed(base);
  if (parsed.result() != CURLUE_OK)
    return fmt::format("is malformed: {}", curl_url_strerror(parsed.result()));
  const std::string scheme = parsed.part(CURLUPART_SCHEME);
  return std::ranges::find(kSchemes, scheme) == kSchemes.end()
             ? "begins with none of http://, https:// and file:///"
             : "";
}

}  // namespace

void check_base_address(const std::string& base) {
  if (is_path(base)) {
    std::error_code unknown;
    const fs::path path = fs::absolute(base, unknown);
    throw InvalidArgument(
        fmt::format("\"{}\" is a path, but --from takes an address\n"
                    "  next:    give file://{}",
                    printable(base),
                    printable((unknown ? fs::path(base) : path).string())));
  }
  const std::string problem = problem_of(base);
  if (problem.empty()) return;
  throw InvalidArgument(fmt::format(
      "\"{}\" {}\n"
      "  next:    give the address of the folder with the files, such as "
      "https://host/folder/ or file:///folder/",
      shown_address(base), problem));
}

std::string address_of(std::string_view base, std::string_view name) {
  return fmt::format("{}{}{}", base, base.ends_with('/') ? "" : "/", name);
}

std::string scheme_of(const std::string& address) {
  return ParsedAddress(address).part(CURLUPART_SCHEME);
}

fs::path path_of(const std::string& address) {
  return ParsedAddress(address).part(CURLUPART_PATH, CURLU_URLDECODE);
}

std::string shown_address(const std::string& address) {
  ParsedAddress parsed(address);
  if (parsed.result() != CURLUE_OK) {
    const std::size_t at = address.rfind('@');
    return printable(at == address.npos ? address : address.substr(at + 1));
  }
  parsed.clear(CURLUPART_USER);
  parsed.clear(CURLUPART_PASSWORD);
  return printable(parsed.part(CURLUPART_URL));
}

}  // namespace lockstep
