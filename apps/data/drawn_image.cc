// A pixel is the mean of four points. Each point is asked whether it lies in
// the shape, and there on which of a pattern's two colors. Both questions are
// formulas in coordinates of their own: the shape's are turned by any angle,
// the pattern's by a small one, because its direction is what tells horizontal
// from vertical stripes.
#include "apps/data/drawn_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

enum class Shape {
  kEverywhere,  // all of the image
  kCircle,
  kRing,
  kSquare,
  kTriangle,
  kCross,
  kStar,
  kCrescent,
  kHeart,
  kBar,
  kArrow,
};

enum class Pattern {
  kPlain,
  kHorizontal,
  kVertical,
  kDiagonal,
  kCheckerboard,
  kDots,
  kGrid,
  kZigzag,
  kTarget,
  kSpeckles,
};

struct DrawnClass {
  std::string_view name;
  Shape shape = Shape::kEverywhere;
  Pattern pattern = Pattern::kPlain;
};

constexpr std::array kSimpleClasses{
    DrawnClass{"circle", Shape::kCircle},
    DrawnClass{"ring", Shape::kRing},
    DrawnClass{"square", Shape::kSquare},
    DrawnClass{"triangle", Shape::kTriangle},
    DrawnClass{"cross", Shape::kCross},
    DrawnClass{"star", Shape::kStar},
    DrawnClass{"horizontal_stripes", Shape::kEverywhere, Pattern::kHorizontal},
    DrawnClass{"vertical_stripes", Shape::kEverywhere, Pattern::kVertical},
    DrawnClass{"checkerboard", Shape::kEverywhere, Pattern::kCheckerboard},
    DrawnClass{"dots", Shape::kEverywhere, Pattern::kDots},
    DrawnClass{"diagonal_stripes", Shape::kEverywhere, Pattern::kDiagonal},
    DrawnClass{"crescent", Shape::kCrescent},
    DrawnClass{"heart", Shape::kHeart},
    DrawnClass{"bar", Shape::kBar},
    DrawnClass{"arrow", Shape::kArrow},
    DrawnClass{"grid", Shape::kEverywhere, Pattern::kGrid},
    DrawnClass{"zigzag", Shape::kEverywhere, Pattern::kZigzag},
    DrawnClass{"target", Shape::kEverywhere, Pattern::kTarget},
    DrawnClass{"speckles", Shape::kEverywhere, Pattern::kSpeckles},
};

struct NamedClass {
  std::string name;
  Shape shape;
  Pattern pattern;
};

// The simple classes, then each pattern in each shape.
NamedClass class_at(int index) {
  const auto simple = static_cast<std::size_t>(index);
  if (simple < kSimpleClasses.size()) {
    const DrawnClass& found = kSimpleClasses[simple];
    return {std::string(found.name), found.shape, found.pattern};
  }
  std::vector<DrawnClass> shapes;
  std::vector<DrawnClass> patterns;
  for (const DrawnClass& each : kSimpleClasses)
    (each.pattern == Pattern::kPlain ? shapes : patterns).push_back(each);
  const std::size_t pair = simple - kSimpleClasses.size();
  const DrawnClass& shape = shapes[pair % shapes.size()];
  const DrawnClass& pattern = patterns[pair / shapes.size()];
  return {fmt::format("{}_with_{}", shape.name, pattern.name), shape.shape,
          pattern.pattern};
}

struct Point {
  double x = 0;
  double y = 0;
};

double length(const Point& at) { return std::hypot(at.x, at.y); }

// Turns points about the origin, and measures them in other units.
struct Frame {
  Point origin{};
  double unit = 1;
  double cosine = 1;
  double sine = 0;

  Frame(const Point& origin_at, double length_of_unit, double degrees)
      : origin(origin_at),
        unit(length_of_unit),
        cosine(std::cos(degrees * std::numbers::pi / 180)),
        sine(std::sin(degrees * std::numbers::pi / 180)) {}

  Point operator()(const Point& at) const {
    const double x = (at.x - origin.x) / unit;
    const double y = (at.y - origin.y) / unit;
    return {x * cosine + y * sine, y * cosine - x * sine};
  }
};

// A star of five points, by the edge from a point to the notch beside it.
bool is_in_star(const Point& at) {
  constexpr double kTenth = std::numbers::pi / 5;
  constexpr double kOuter = 1.15;
  constexpr double kNotch = 0.45;
  const double around = std::atan2(at.y, at.x) + 2 * std::numbers::pi;
  const double angle = std::abs(std::fmod(around, 2 * kTenth) - kTenth);
  const Point folded{length(at) * std::cos(angle),
                     length(at) * std::sin(angle)};
  const Point edge{kNotch * std::cos(kTenth) - kOuter,
                   kNotch * std::sin(kTenth)};
  return edge.x * folded.y - edge.y * (folded.x - kOuter) > 0;
}

// The curve (x² + y² - 1)³ = x² y³.
bool is_in_heart(const Point& at) {
  const double x = 1.2 * at.x;
  const double y = 0.1 - 1.2 * at.y;
  const double disc = x * x + y * y - 1;
  return disc * disc * disc < x * x * y * y * y;
}

bool is_in(Shape shape, const Point& at) {
  const double x = std::abs(at.x);
  const double y = std::abs(at.y);
  switch (shape) {
    case Shape::kEverywhere:
      return true;
    case Shape::kCircle:
      return length(at) < 1;
    case Shape::kRing:
      return length(at) < 1.05 && length(at) > 0.6;
    case Shape::kSquare:
      return std::max(x, y) < 0.85;
    case Shape::kTriangle:
      return at.y < 0.55 && x * std::numbers::sqrt3 < at.y + 1.1;
    case Shape::kCross:
      return std::min(x, y) < 0.3 && std::max(x, y) < 1.05;
    case Shape::kStar:
      return is_in_star(at);
    case Shape::kCrescent:
      return length(at) < 1.05 && length({at.x - 0.5, at.y}) > 0.8;
    case Shape::kHeart:
      return is_in_heart(at);
    case Shape::kBar:
      return x < 1.15 && y < 0.35;
    case Shape::kArrow:
      return at.x < 0.1 ? at.x > -1.1 && y < 0.22 : y < (1.1 - at.x) * 0.8;
  }
  return false;
}

double fraction(double value) { return value - std::floor(value); }

std::uint64_t cell(double value) {
  return static_cast<std::uint64_t>(
      static_cast<std::int64_t>(std::floor(value)));
}

// Which of two colors a pattern has; its period is 1.
bool is_marked(Pattern pattern, const Point& at, std::uint64_t speckle_seed) {
  const double x = fraction(at.x);
  const double y = fraction(at.y);
  switch (pattern) {
    case Pattern::kPlain:
      return true;
    case Pattern::kHorizontal:
    case Pattern::kDiagonal:  // the frame is turned
      return y < 0.5;
    case Pattern::kVertical:
      return x < 0.5;
    case Pattern::kCheckerboard:
      return (x < 0.5) != (y < 0.5);
    case Pattern::kDots:
      return length({x - 0.5, y - 0.5}) < 0.3;
    case Pattern::kGrid:
      return std::min(x, y) < 0.22;
    case Pattern::kZigzag:
      return fraction(at.y + std::abs(2 * x - 1)) < 0.5;
    case Pattern::kTarget:
      return fraction(length(at)) < 0.5;
    case Pattern::kSpeckles:
      return SampleRandom(speckle_seed, cell(3 * at.x), cell(3 * at.y))
                 .below(2) == 0;
  }
  return false;
}

using Rgb = std::array<double, 3>;  // 0 … 1

// A color of any hue and of that luminance, by the axes U and V of television.
Rgb color_of(double luminance, SampleRandom& random) {
  const double hue = random.uniform(0, 2 * std::numbers::pi);
  const double saturation = random.uniform(0, 0.22);
  const double u = saturation * std::cos(hue);
  const double v = saturation * std::sin(hue);
  return {luminance + 1.14 * v, luminance - 0.395 * u - 0.581 * v,
          luminance + 2.032 * u};
}

// Three colors that differ in luminance, in any order.
std::array<Rgb, 3> draw_colors(SampleRandom& random) {
  std::array<double, 3> luminances{random.uniform(0.1, 0.25),
                                   random.uniform(0.42, 0.58),
                                   random.uniform(0.75, 0.9)};
  std::swap(luminances[0], luminances[random.below(3)]);
  std::swap(luminances[1], luminances[1 + random.below(2)]);
  return {color_of(luminances[0], random), color_of(luminances[1], random),
          color_of(luminances[2], random)};
}

// Brightness that changes smoothly over the image, as light does.
class Shade {
 public:
  explicit Shade(SampleRandom& random) {
    const double amplitude = random.uniform(0, 0.12);
    for (double& knot : knots_) knot = random.uniform(-amplitude, amplitude);
  }

  // `x` and `y`: 0 … 1.
  double at(double x, double y) const {
    const auto [column, right] = place(x);
    const auto [row, below] = place(y);
    const double* const knot = knots_.data() + row * kKnots + column;
    return (1 - below) * ((1 - right) * knot[0] + right * knot[1]) +
           below * ((1 - right) * knot[kKnots] + right * knot[kKnots + 1]);
  }

 private:
  static constexpr std::size_t kKnots = 5;  // along a side

  static std::pair<std::size_t, double> place(double share) {
    const double along = share * (kKnots - 1);
    const auto knot = std::min(static_cast<std::size_t>(along), kKnots - 2);
    return {knot, along - static_cast<double>(knot)};
  }

  std::array<double, kKnots * kKnots> knots_{};
};

double largest_turn(Pattern pattern) {
  return pattern == Pattern::kTarget || pattern == Pattern::kSpeckles ? 180
                                                                      : 10;
}

// All that is drawn of an image before its pixels.
class Drawing {
 public:
  Drawing(const NamedClass& of, const ImageSize& size, SampleRandom& random)
      : class_(of),
        side_(static_cast<double>(std::min(size.height, size.width))),
        colors_(draw_colors(random)),
        // Braces: the numbers are drawn from left to right.
        shape_frame_{draw_place(size, random),
                     side_ * random.uniform(0.22, 0.4),
                     random.uniform(-180, 180)},
        pattern_frame_(draw_pattern_frame(random)),
        speckle_seed_(random.next()) {}

  // The sum of the colors of a pixel's four points.
  Rgb color(std::int64_t row, std::int64_t column) const {
    Rgb sum{};
    for (const double below : {0.25, 0.75})
      for (const double right : {0.25, 0.75}) {
        const Rgb& color = color_at({static_cast<double>(column) + right,
                                     static_cast<double>(row) + below});
        for (std::size_t i = 0; i < 3; ++i) sum[i] += color[i];
      }
    return sum;
  }

 private:
  static Point draw_place(const ImageSize& size, SampleRandom& random) {
    return {static_cast<double>(size.width) * random.uniform(0.36, 0.64),
            static_cast<double>(size.height) * random.uniform(0.36, 0.64)};
  }

  // A pattern begins at any place; a target's middle is the shape's.
  Frame draw_pattern_frame(SampleRandom& random) const {
    const bool fills = class_.shape == Shape::kEverywhere;
    const double period =
        (fills ? side_ * 0.6 : shape_frame_.unit) * random.uniform(0.4, 0.65);
    const double turn = largest_turn(class_.pattern);
    double degrees = random.uniform(-turn, turn);
    const bool rises = random.below(2) == 0;
    if (class_.pattern == Pattern::kDiagonal) degrees += rises ? 45 : -45;
    const double shift = class_.pattern == Pattern::kTarget ? 0 : period;
    const Point origin{shape_frame_.origin.x + random.uniform(0, shift),
                       shape_frame_.origin.y + random.uniform(0, shift)};
    return {origin, period, degrees};
  }

  const Rgb& color_at(const Point& at) const {
    if (!is_in(class_.shape, shape_frame_(at))) return colors_[0];
    if (class_.pattern == Pattern::kPlain) return colors_[1];
    return is_marked(class_.pattern, pattern_frame_(at), speckle_seed_)
               ? colors_[1]
               : colors_[2];
  }

  const NamedClass& class_;
  double side_;
  std::array<Rgb, 3> colors_;  // around the shape; of the shape; of a pattern
  Frame shape_frame_;
  Frame pattern_frame_;
  std::uint64_t speckle_seed_;
};

// Two uniform numbers make noise that is mostly small.
double draw_noise(SampleRandom& random, double amplitude) {
  constexpr double kScale = 0x1p-32;
  const std::uint64_t bits = random.next();
  const auto low = static_cast<double>(bits & 0xffffffffu);
  const auto high = static_cast<double>(bits >> 32);
  return amplitude * (low - high) * kScale;
}

}  // namespace

std::vector<std::string> drawn_class_names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(class_at(i).name);
  return names;
}

Image draw_image(int class_index, const ImageSize& size, SampleRandom& random) {
  const NamedClass of = class_at(class_index);
  const Drawing drawing(of, size, random);
  const Shade shade(random);
  const double contrast = random.uniform(0.45, 1);
  const double brightness = random.uniform(0.42, 0.58);
  const double noise = random.uniform(0.02, 0.12);
  Image image{.size = size};
  image.pixels.reserve(static_cast<std::size_t>(size.height * size.width * 3));
  for (std::int64_t row = 0; row < size.height; ++row)
    for (std::int64_t column = 0; column < size.width; ++column) {
      const Rgb color = drawing.color(row, column);
      const double light =
          brightness + shade.at((static_cast<double>(column) + 0.5) /
                                    static_cast<double>(size.width),
                                (static_cast<double>(row) + 0.5) /
                                    static_cast<double>(size.height));
      for (std::size_t i = 0; i < 3; ++i) {
        const double value =
            light + contrast * (color[i] / 4 - 0.5) + draw_noise(random, noise);
        image.pixels.push_back(static_cast<std::uint8_t>(
            std::lround(std::clamp(255 * value, 0.0, 255.0))));
      }
    }
  return image;
}

}  // namespace lockstep
