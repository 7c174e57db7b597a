// The values in a transform's text: from and to the arguments that they are.
//
// Threads: any thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/data/transforms.h"

namespace lockstep::transforms {

// A value of the text: a number, a name or a list of numbers.
struct Value {
  std::variant<double, std::string_view, std::vector<double>> is{};
  std::size_t offset = 0;

  const double* number() const { return std::get_if<double>(&is); }
  const std::string_view* name() const {
    return std::get_if<std::string_view>(&is);
  }
  // A number, or that of a list of one: torchvision takes either for sizes.
  const double* one() const { return number() ? number() : list(1); }
  // The numbers of a list of `count`; nothing for anything else.
  const double* list(std::size_t count) const {
    const auto* numbers = std::get_if<std::vector<double>>(&is);
    return numbers != nullptr && numbers->size() == count ? numbers->data()
                                                          : nullptr;
  }
};

// The sides of a kernel: torchvision's pair is (width, height) there, and
// (height, width) everywhere else.
template <class Member>
struct WidthFirst {
  Member& sides;
};
template <class Member>
WidthFirst(Member&) -> WidthFirst<Member>;

// Each sets `member` and returns "", or returns what it expects.
std::string_view convert(const Value& value, Sides& member);
std::string_view convert(const Value& value, WidthFirst<Sides> member);
std::string_view convert(const Value& value, Interpolation& member);
std::string_view convert(const Value& value, PaddingMode& member);
std::string_view convert(const Value& value, bool& member);
std::string_view convert(const Value& value, std::int64_t& member);
std::string_view convert(const Value& value, double& member);
std::string_view convert(const Value& value,
                         std::array<std::int64_t, 4>& member);
std::string_view convert(const Value& value, Fill& member);
std::string_view convert(const Value& value, Range& member);
std::string_view convert(const Value& value, NumberOrRange& member);
std::string_view convert(const Value& value, std::optional<Center>& member);
std::string_view convert(const Value& value, std::array<double, 2>& member);
std::string_view convert(const Value& value, Shear& member);
std::string_view convert(const Value& value, std::vector<float>& member);
std::string_view convert(const Value& value,
                         std::variant<std::array<float, 3>, Noise>& member);

// Each returns a text whose value convert() takes for the same member.
std::string printed(const Sides& member);
std::string printed(WidthFirst<const Sides> member);
std::string printed(Interpolation member);
std::string printed(PaddingMode member);
std::string printed(bool member);
std::string printed(std::int64_t member);
std::string printed(double member);
std::string printed(const Range& member);
std::string printed(const NumberOrRange& member);
std::string printed(const std::optional<Center>& member);
std::string printed(const Shear& member);
std::string printed(const std::variant<std::array<float, 3>, Noise>& member);
std::string printed(const std::array<std::int64_t, 4>& member);
std::string printed(const Fill& member);
std::string printed(const std::array<double, 2>& member);
std::string printed(const std::vector<float>& member);

}  // namespace lockstep::transforms
