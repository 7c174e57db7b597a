#include "src/data/transform/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

namespace lockstep::transforms {
namespace {

// As Python's math.radians() rounds.
double radians(double degrees) { return degrees * (std::numbers::pi / 180.0); }

std::pair<double, double> mapped(const Matrix& matrix, double x, double y) {
  return {matrix[0] * x + matrix[1] * y + matrix[2],
          matrix[3] * x + matrix[4] * y + matrix[5]};
}

// PIL rounds sine and cosine to 15 decimal places, so that a right angle's are
// whole. Multiplying by 1e15 would round twice.
double to_15_places(double value) {
  std::array<char, 32> decimal{};
  const auto end =
      fmt::format_to_n(decimal.data(), decimal.size(), "{:.15f}", value).out;
  double rounded = 0;
  std::from_chars(decimal.data(), end, rounded);
  return rounded;
}

}  // namespace

Matrix rotation_matrix(double degrees, const RandomRotation& rotation,
                       ImageSize& size) {
  const auto w = static_cast<double>(size.width);
  const auto h = static_cast<double>(size.height);
  const Center center = rotation.center.value_or(Center{w / 2.0, h / 2.0});
  const double angle = -radians(degrees);
  const double cosine = to_15_places(std::cos(angle));
  const double sine = to_15_places(std::sin(angle));
  Matrix matrix{cosine, sine, 0, -sine, cosine, 0};
  std::tie(matrix[2], matrix[5]) = mapped(matrix, -center.x, -center.y);
  matrix[2] += center.x;
  matrix[5] += center.y;
  if (!rotation.expand) return matrix;
  std::array<double, 4> x{};
  std::array<double, 4> y{};
  for (std::size_t i = 0; i < 4; ++i)
    std::tie(x[i], y[i]) =
        mapped(matrix, i == 1 || i == 2 ? w : 0, i >= 2 ? h : 0);
  const auto extent = [](const std::array<double, 4>& values) {
    const auto [least, most] = std::ranges::minmax(values);
    return std::ceil(most) - std::floor(least);
  };
  const double nw = extent(x);
  const double nh = extent(y);
  std::tie(matrix[2], matrix[5]) =
      mapped(matrix, -(nw - w) / 2.0, -(nh - h) / 2.0);
  size = {static_cast<std::int64_t>(nh), static_cast<std::int64_t>(nw)};
  return matrix;
}

Matrix affine_matrix(const AffineParameters& drawn, const Center& center) {
  const double rot = radians(drawn.angle);
  const double sx = radians(drawn.shear[0]);
  const double sy = radians(drawn.shear[1]);
  const double a = std::cos(rot - sy) / std::cos(sy);
  const double b =
      -std::cos(rot - sy) * std::tan(sx) / std::cos(sy) - std::sin(rot);
  const double c = std::sin(rot - sy) / std::cos(sy);
  const double d =
      -std::sin(rot - sy) * std::tan(sx) / std::cos(sy) + std::cos(rot);
  Matrix matrix{d, -b, 0, -c, a, 0};
  for (double& value : matrix) value /= drawn.scale;
  const double x = -center.x - drawn.translate[0];
  const double y = -center.y - drawn.translate[1];
  matrix[2] = matrix[0] * x + matrix[1] * y + center.x;
  matrix[5] = matrix[3] * x + matrix[4] * y + center.y;
  return matrix;
}

}  // namespace lockstep::transforms
