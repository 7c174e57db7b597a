// PNG files, with libpng.
//
// Every form of 8 bits per sample or less becomes grey or RGB. Transparency is
// dropped and gamma is ignored, as in PIL, so libpng skips all chunks but those
// of the pixels and the palette; it still checks their checksums. Rows below a
// region are not decoded if the chunks of all pixels have the right checksum.
//
// The pixels have two checksums, that of their chunks and that of the
// compressed data. One that is right proves that no pixel is lost; so a file is
// refused if both are wrong, whatever region is read. As in PIL, the chunks
// behind the pixels do not count, nor do data that follow the last row.
#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "src/data/data_file.h"
#include "src/data/image/exif.h"
#include "src/data/image/image_decoder.h"
#include "src/data/image/image_error.h"
#include "src/data/image/library_call.h"
#include "src/data/image/pixel_row.h"
#include "src/data/image/png_header.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::int64_t kMostSide = 0x7fffffff;  // PNG's limit
// No chunk that is kept is as large, besides those of pixels, which libpng
// reads in small pieces.
constexpr png_alloc_size_t kMostChunkBytes = 1 << 20;

// libpng's objects and the contents of one file.
class PngFile {
 public:
  PngFile(Bytes contents, std::string_view name, const PngHeader& header)
      : contents_(contents), name_(name), has_end_(header.has_end) {
    const bool made = call_.succeeds([this] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, stop_at_error,
                                    take_warning);
      if (png_ != nullptr) info_ = png_create_info_struct(png_);
    });
    if (made && info_ != nullptr) return;
    png_destroy_read_struct(&png_, &info_, nullptr);
    throw std::bad_alloc();
  }
  ~PngFile() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngFile(const PngFile&) = delete;
  PngFile& operator=(const PngFile&) = delete;

  png_structp png() { return png_; }
  png_infop info() { return info_; }

  // Runs `step`, which calls libpng; see LibraryCall.
  template <class Step>
  void attempt(const Step& step) {
    if (call_.succeeds(step)) return;
    throw malformed_file(
        {.file = name_,
         .problem = has_end_ ? "it is damaged" : "it is truncated or damaged",
         .offset = offset_,
         .expected = "the data of an intact PNG image",
         .found = text_.data()});
  }

  void read_header(std::int64_t most_pixels) {
    const auto side = static_cast<png_uint_32>(
        std::clamp<std::int64_t>(most_pixels, 1, kMostSide));
    attempt([&] {
      png_set_read_fn(png_, this, read_bytes);
      png_set_user_limits(png_, side, side);
      png_set_chunk_malloc_max(png_, kMostChunkBytes);
      png_set_chunk_cache_max(png_, 1);
      png_set_crc_action(png_, PNG_CRC_WARN_USE, PNG_CRC_WARN_USE);
      png_set_benign_errors(png_, 1);
      // Some writers state a smaller window than they use.
      png_set_option(png_, PNG_MAXIMUM_INFLATE_WINDOW, PNG_OPTION_ON);
      // All but those that libpng needs, and transparency.
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      constexpr std::array<png_byte, 5> kTransparency = {'t', 'R', 'N', 'S', 0};
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER,
                                  kTransparency.data(), 1);
      png_read_info(png_, info_);
    });
    at_pixels_ = true;
  }

  // Looks at the chunks that a reader of some rows does not come to.
  void check_chunks() {
    if (!has_wrong_chunk_)
      has_wrong_chunk_ = !pixels_have_right_checksums(contents_);
  }

  // Whether the pixels are intact only if those that follow are, too.
  bool needs_all_rows() const { return has_wrong_chunk_ || !has_end_; }

  // Checks what follows the last row.
  void read_end() {
    if (has_end_) attempt([this] { png_read_end(png_, nullptr); });
  }

  void read_row(std::uint8_t* row) {
    attempt([&] { png_read_row(png_, row, nullptr); });
  }

 private:
  [[noreturn]] static void stop_at_error(png_structp png,
                                         png_const_charp text) {
    auto* const file = static_cast<PngFile*>(png_get_error_ptr(png));
    std::strncpy(file->text_.data(), text, file->text_.size() - 1);
    file->call_.fail();
  }

  static void take_warning(png_structp png, png_const_charp text) {
    auto* const file = static_cast<PngFile*>(png_get_error_ptr(png));
    const std::string_view warning = text;
    const bool of_pixels = warning.starts_with("IDAT: ");
    const bool of_chunk = warning.ends_with("CRC error");
    if (of_chunk && !of_pixels && !file->at_pixels_) stop_at_error(png, text);
    if (!of_pixels || warning.ends_with("Extra compressed data") ||
        warning.ends_with("Too much image data"))
      return;
    (of_chunk ? file->has_wrong_chunk_ : file->has_wrong_stream_) = true;
    if (file->has_wrong_chunk_ && file->has_wrong_stream_)
      stop_at_error(png, text);
  }

  static void read_bytes(png_structp png, png_bytep out, std::size_t count) {
    auto* const file = static_cast<PngFile*>(png_get_io_ptr(png));
    if (count > file->contents_.size() - file->offset_)
      png_error(png, "the end of the file");
    std::memcpy(out, file->contents_.data() + file->offset_, count);
    file->offset_ += count;
  }

  Bytes contents_;
  std::string name_;
  std::size_t offset_ = 0;
  bool has_end_;
  bool at_pixels_ = false;         // of the chunks
  bool has_wrong_chunk_ = false;   // of the pixels: the chunk's checksum
  bool has_wrong_stream_ = false;  // the end of their compressed data
  LibraryCall call_{};
  std::array<char, 200> text_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

class PngDecoder final : public ImageDecoder {
 public:
  StoredImage open(Bytes contents, std::string_view name,
                   const DecodeOptions& options) override {
    file_.reset();
    const PngHeader header = read_png_header(contents, name);
    check_pixel_count(name, header.size, options.max_pixels);
    if (header.bits_per_sample > 8)
      throw unsupported_image(name,
                              fmt::format("it has {} bits per sample; up to 8 "
                                          "are read",
                                          header.bits_per_sample));
    file_.emplace(contents, name, header);
    file_->read_header(options.max_pixels);
    size_ = header.size;
    color_ = options.color;
    return {.size = size_, .orientation = exif_orientation(header.exif)};
  }

  bool scales() const override { return false; }

  void read(const ImageRegion& region, int /*denominator*/,
            Image& image) override {
    // It allocates rows, whose length the file states; open() only looks.
    set_form(color_);
    image.size = region.size;
    image.channels = static_cast<std::int64_t>(form_.channels);
    image.pixels.resize(
        static_cast<std::size_t>(region.size.height * region.size.width) *
        form_.channels);
    const bool to_the_end = region.top + region.size.height == size_.height;
    if (!to_the_end) file_->check_chunks();
    if (png_get_interlace_type(file_->png(), file_->info()) ==
        PNG_INTERLACE_NONE)
      read_rows(region, image);
    else
      read_passes(region, image);
    if (to_the_end || file_->needs_all_rows()) file_->read_end();
    file_.reset();
  }

 private:
  // Has libpng give rows of 8-bit grey or RGB.
  void set_form(ImageColor color) {
    png_structp png = file_->png();
    const int type = png_get_color_type(png, file_->info());
    const bool gray_file = (type & PNG_COLOR_MASK_COLOR) == 0;
    const bool gray = color == ImageColor::kGray;
    form_ = {.decoded_channels = gray && gray_file ? 1U : 3U,
             .channels = gray ? 1U : 3U};
    file_->attempt([&] {
      if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
      if (gray_file) png_set_expand_gray_1_2_4_to_8(png);
      if ((type & PNG_COLOR_MASK_ALPHA) != 0) png_set_strip_alpha(png);
      if (gray_file && !gray) png_set_gray_to_rgb(png);
      png_set_interlace_handling(png);
      png_read_update_info(png, file_->info());
    });
    LOCKSTEP_CHECK(png_get_rowbytes(png, file_->info()) == row_bytes(),
                   "libpng writes rows of another size");
  }

  std::size_t row_bytes() const {
    return static_cast<std::size_t>(size_.width) * form_.decoded_channels;
  }

  // Writes the part of the row `decoded` that is in `region`.
  void copy_row(const ImageRegion& region, std::int64_t row,
                const std::uint8_t* decoded, Image& image) const {
    const auto width = static_cast<std::size_t>(region.size.width);
    copy_pixels(form_,
                decoded + static_cast<std::size_t>(region.left) *
                              form_.decoded_channels,
                width,
                image.pixels.data() +
                    static_cast<std::size_t>(row) * width * form_.channels);
  }

  void read_rows(const ImageRegion& region, Image& image) {
    decoded_.resize(row_bytes());
    const std::int64_t below = size_.height - region.top;
    for (std::int64_t row = -region.top;
         row < region.size.height || (row < below && file_->needs_all_rows());
         ++row) {
      file_->read_row(decoded_.data());
      if (row >= 0 && row < region.size.height)
        copy_row(region, row, decoded_.data(), image);
    }
  }

  // Each pass of an interlaced image fills in pixels all over it.
  void read_passes(const ImageRegion& region, Image& image) {
    decoded_.resize(row_bytes() * static_cast<std::size_t>(size_.height));
    for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES; ++pass)
      for (std::int64_t row = 0; row < size_.height; ++row)
        file_->read_row(decoded_row(row));
    for (std::int64_t row = 0; row < region.size.height; ++row)
      copy_row(region, row, decoded_row(region.top + row), image);
  }

  std::uint8_t* decoded_row(std::int64_t row) {
    return decoded_.data() + static_cast<std::size_t>(row) * row_bytes();
  }

  std::optional<PngFile> file_{};
  ImageSize size_{};
  ImageColor color_ = ImageColor::kRgb;
  RowForm form_{};
  std::vector<std::uint8_t> decoded_{};  // used again
};

}  // namespace

std::unique_ptr<ImageDecoder> make_png_decoder() {
  return std::make_unique<PngDecoder>();
}

}  // namespace lockstep
