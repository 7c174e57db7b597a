#include "src/download/base_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "src/base/printable.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 3> kBeginnings{"http://", "https://",
                                                      "file:///"};

// A blank, a control character, or what begins a query or a fragment.
bool ends_a_path(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte <= ' ' || byte == 0x7f || character == '?' || character == '#';
}

}  // namespace

void check_base_address(std::string_view base) {
  const auto fail = [&](std::string_view why) {
    throw InvalidArgument(fmt::format(
        "\"{}\" {}\n"
        "  next:    give the address of the folder with the files, such as "
        "https://host/folder/ or file:///folder/",
        printable(base), why));
  };
  const auto beginning = std::ranges::find_if(
      kBeginnings, [&](auto known) { return base.starts_with(known); });
  if (beginning == kBeginnings.end())
    fail("begins with none of http://, https:// and file:///");
  if (base.size() == beginning->size() && *beginning != "file:///")
    fail("names no host");
  if (std::ranges::any_of(base, ends_a_path))
    fail("has a blank, a \"?\" or a \"#\" in it");
}

std::string address_of(std::string_view base, std::string_view name) {
  return fmt::format("{}{}{}", base, base.ends_with('/') ? "" : "/", name);
}

}  // namespace lockstep
