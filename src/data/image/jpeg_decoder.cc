// JPEG files, with libjpeg-turbo.
//
// Pixels are those that libjpeg's defaults give (the exact inverse transform,
// smooth upsampling of chroma), which are PIL's. Four components are inks,
// which libjpeg cannot convert to RGB; PIL takes them as inverted, as Adobe's
// programs write them, whether or not the file has Adobe's marker.
//
// A region costs what lies in it, plus a margin. libjpeg crops to whole blocks,
// but upsamples chroma at a side of the crop as at one of the image: from the
// pixels inside alone. So the decoder asks for kMargin pixels more on each
// side, and copies the inside. libjpeg parses the rows above the region, but
// transforms none beside those that the region's first row needs. Rows below it
// are not read, beyond a search for the marker that ends the image, so that a
// truncated file is refused whatever the region.
//
// libjpeg decodes damaged data to grey areas and counts warnings; here a
// warning is an error unless no pixel is lost. Each file gets a new libjpeg
// object: an object keeps the tables of one file, and a next file without
// tables would be decoded by them.
#include <cstdio>
// libjpeg's headers need <cstdio> first.
#include <fmt/format.h>
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "src/data/data_file.h"
#include "src/data/image/exif.h"
#include "src/data/image/image_decoder.h"
#include "src/data/image/image_error.h"
#include "src/data/image/library_call.h"
#include "src/data/image/pixel_row.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

// Smooth upsampling reads one chroma sample beside its own: two pixels.
constexpr std::int64_t kMargin = 2;
// Each scan of a file costs a pass over the image, and a scan of a few bytes
// suffices. Encoders write about 10; libjpeg-turbo's fuzzers stop at 500.
constexpr int kMostScans = 500;
// Beside libjpeg's own message codes.
constexpr int kTooManyScans = -1;

struct JpegErrors {
  jpeg_error_mgr library{};
  LibraryCall call{};
  int code = 0;
  std::array<char, JMSG_LENGTH_MAX> text{};
};

[[noreturn]] void stop(j_common_ptr object, int code) {
  auto* const errors = static_cast<JpegErrors*>(object->client_data);
  errors->code = code;
  errors->call.fail();
}

[[noreturn]] void stop_at_error(j_common_ptr object) {
  auto* const errors = static_cast<JpegErrors*>(object->client_data);
  object->err->format_message(object, errors->text.data());
  stop(object, object->err->msg_code);
}

// Whether the bytes that libjpeg skips before a marker are not of the image. In
// front of the first scan there is none. After a scan they are padding, as some
// cameras write it, if they are alike and begin where the image ends: skipped
// data of the image mean that the decoder went astray in it, and zeros that it
// took for the image are a part of a file that was not written.
bool skips_padding(const jpeg_decompress_struct& image) {
  if (image.input_scan_number == 0) return true;
  // Fewer bytes may be alike by chance.
  constexpr int kFewest = 4;
  const int skipped = image.err->msg_parm.i[0];
  const int marker = image.err->msg_parm.i[1];
  // The image's own last byte may be like the padding. At the end of a scan,
  // libjpeg has taken up to eight bytes ahead, and does not count them.
  const bool restarts = marker >= JPEG_RST0 && marker < JPEG_RST0 + 8;
  const int uncounted = restarts ? 1 : 9;
  const JOCTET* const last = image.src->next_input_byte - 1;
  int alike = 1;
  // A scan has a header, so that the search ends in the file.
  while (alike <= skipped + uncounted && *(last - alike) == *last) ++alike;
  return alike >= skipped && alike <= skipped + uncounted &&
         (*last == 0 || alike >= kFewest);
}

bool keeps_all_pixels(j_common_ptr object) {
  switch (object->err->msg_code) {
    case JWRN_JFIF_MAJOR:      // the number of a version
    case JWRN_ADOBE_XFORM:     // an unknown one counts as the usual one
    case JWRN_NOT_SEQUENTIAL:  // parameters that such a scan does not use
      return true;
    case JWRN_EXTRANEOUS_DATA:
      return skips_padding(*reinterpret_cast<j_decompress_ptr>(object));
    default:
      return false;
  }
}

void stop_at_warning(j_common_ptr object, int level) {
  if (level < 0 && !keeps_all_pixels(object)) stop_at_error(object);
}

void stop_at_scan_limit(j_common_ptr object) {
  const auto* const image = reinterpret_cast<j_decompress_ptr>(object);
  if (image->input_scan_number > kMostScans) stop(object, kTooManyScans);
}

// A libjpeg object and the contents of one file. The name must live as long.
class JpegFile {
 public:
  JpegFile(Bytes contents, std::string_view name)
      : contents_(contents), name_(name) {
    image_.err = jpeg_std_error(&errors_.library);
    image_.client_data = &errors_;
    errors_.library.error_exit = stop_at_error;
    errors_.library.emit_message = stop_at_warning;
    progress_.progress_monitor = stop_at_scan_limit;
  }
  ~JpegFile() { jpeg_destroy_decompress(&image_); }
  JpegFile(const JpegFile&) = delete;
  JpegFile& operator=(const JpegFile&) = delete;

  jpeg_decompress_struct& image() { return image_; }

  // Runs `step`, which calls libjpeg; see LibraryCall.
  template <class Step>
  void attempt(const Step& step) {
    if (!errors_.call.succeeds(step)) refuse();
  }

  void read_header() {
    attempt([this] {
      jpeg_create_decompress(&image_);
      image_.progress = &progress_;
      jpeg_mem_src(&image_,
                   reinterpret_cast<const unsigned char*>(contents_.data()),
                   contents_.size());
      jpeg_read_header(&image_, TRUE);
    });
  }

  // Decodes one row.
  void read_row(JSAMPLE* row) {
    attempt([&] { jpeg_read_scanlines(&image_, &row, 1); });
  }

  // Checks that the file holds the rest of an image of which the first rows
  // were read.
  void check_end() {
    // In both cases libjpeg has read the end already.
    if (jpeg_has_multiple_scans(&image_) != 0) return;
    if (image_.unread_marker == JPEG_EOI) return;
    const Bytes rest = contents_.last(image_.src->bytes_in_buffer);
    constexpr std::array kEnd = {std::byte{0xff}, std::byte{JPEG_EOI}};
    // From the end, where an intact file has it.
    if (std::find_end(rest.begin(), rest.end(), kEnd.begin(), kEnd.end()) ==
        rest.end())
      refuse_truncated();
  }

 private:
  [[noreturn]] void refuse() const {
    switch (errors_.code) {
      case JERR_OUT_OF_MEMORY:
        throw std::bad_alloc();
      case JWRN_JPEG_EOF:
        refuse_truncated();
      case JERR_BAD_PRECISION:
        throw unsupported_image(
            name_, fmt::format("it has {} bits per sample instead of 8",
                               image_.data_precision));
      case JERR_SOF_UNSUPPORTED:
        throw unsupported_image(name_,
                                "it is a lossless or hierarchical JPEG image");
      default:
        break;
    }
    const std::string most = fmt::format("at most {} scans", kMostScans);
    const bool scans = errors_.code == kTooManyScans;
    throw malformed_file(
        {.file = std::string(name_),
         .problem = scans ? "it has too many scans" : "it is damaged",
         .offset = offset(),
         .expected = scans ? most : "the data of an intact JPEG image",
         .found = scans ? "one more" : errors_.text.data()});
  }

  [[noreturn]] void refuse_truncated() const {
    throw malformed_file({.file = std::string(name_),
                          .problem = "it is truncated",
                          .offset = contents_.size(),
                          .expected = "more data of a JPEG image",
                          .found = "the end of the file"});
  }

  // How far libjpeg has read, about: its parts keep copies of the place.
  std::size_t offset() const {
    if (image_.src == nullptr) return 0;
    return contents_.size() - image_.src->bytes_in_buffer;
  }

  Bytes contents_;
  std::string_view name_;
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct image_{};
};

void check_form(std::string_view name, const jpeg_decompress_struct& image) {
  if (image.arith_code != 0)
    throw unsupported_image(name, "it is an arithmetic-coded JPEG image");
  if (image.data_precision != 8)
    throw unsupported_image(
        name, fmt::format("it has {} bits per sample instead of 8",
                          image.data_precision));
  if (image.jpeg_color_space == JCS_UNKNOWN)
    throw unsupported_image(
        name, fmt::format("it has {} color components", image.num_components));
}

// What libjpeg is asked for: grey or RGB where it can give them.
J_COLOR_SPACE decoded_space(J_COLOR_SPACE stored, ImageColor color) {
  if (stored == JCS_CMYK || stored == JCS_YCCK) return JCS_CMYK;
  // Grey of a color image is computed from red, green and blue, as in PIL.
  return stored == JCS_GRAYSCALE && color == ImageColor::kGray ? JCS_GRAYSCALE
                                                               : JCS_RGB;
}

std::size_t channels_of(J_COLOR_SPACE decoded) {
  if (decoded == JCS_CMYK) return 4;
  return decoded == JCS_GRAYSCALE ? 1 : 3;
}

// Whether libjpeg guesses coefficients that the scans of a progressive image
// leave out, from those of blocks around: then each block depends on others.
bool guesses_coefficients(const jpeg_decompress_struct& image) {
  if (image.progressive_mode == 0 || image.coef_bits == nullptr) return false;
  const auto incomplete = [](const int(&bits)[DCTSIZE2]) {
    return std::any_of(std::begin(bits), std::end(bits),
                       [](int missing) { return missing != 0; });
  };
  return std::any_of(image.coef_bits, image.coef_bits + image.num_components,
                     incomplete);
}

// Whether a cropped row has the pixels of the whole row. With sampling factors
// of 3 and 4, libjpeg miscounts the samples beside a crop of components that it
// enlarges by some of them.
bool crops_exactly(const jpeg_decompress_struct& image) {
  return image.max_h_samp_factor <= 2 && image.max_v_samp_factor <= 2;
}

// libjpeg-turbo writes a row that begins at a multiple of 16 past the cache, so
// that reading it next waits for memory: 0.2 ms of 1.2 ms an image.
constexpr std::uintptr_t kPastCache = 16;

bool is_past_cache(const JSAMPLE* row) {
  return reinterpret_cast<std::uintptr_t>(row) % kPastCache == 0;
}

class JpegDecoder final : public ImageDecoder {
 public:
  StoredImage open(Bytes contents, std::string_view name,
                   const DecodeOptions& options) override {
    name_ = name;
    JpegFile& file = file_.emplace(contents, name_);
    file.read_header();
    jpeg_decompress_struct& image = file.image();
    const ImageSize size{.height = image.image_height,
                         .width = image.image_width};
    check_pixel_count(name, size, options.max_pixels);
    check_form(name, image);
    image.out_color_space =
        decoded_space(image.jpeg_color_space, options.color);
    form_ = {.decoded_channels = channels_of(image.out_color_space),
             .channels = options.color == ImageColor::kGray ? 1U : 3U};
    return {.size = size, .orientation = jpeg_orientation(contents)};
  }

  bool scales() const override { return true; }

  void read(const ImageRegion& region, int denominator, Image& image) override {
    jpeg_decompress_struct& object = file_->image();
    object.scale_num = 1;
    object.scale_denom = static_cast<unsigned>(denominator);
    file_->attempt([&] { jpeg_start_decompress(&object); });
    const bool exact = !guesses_coefficients(object) && crops_exactly(object);
    const std::int64_t first_column = exact ? crop(region) : 0;
    const auto above = static_cast<JDIMENSION>(exact ? region.top : 0);
    file_->attempt([&] { jpeg_skip_scanlines(&object, above); });
    copy_rows(region, first_column, image);
  }

 private:
  // Limits decoding to the columns of `region` and a margin; returns the first.
  std::int64_t crop(const ImageRegion& region) {
    const std::int64_t left = std::max<std::int64_t>(region.left - kMargin, 0);
    const std::int64_t all = file_->image().output_width;
    const std::int64_t right =
        std::min(region.left + region.size.width + kMargin, all);
    auto first = static_cast<JDIMENSION>(left);
    auto width = static_cast<JDIMENSION>(right - left);
    if (width == all) return 0;
    file_->attempt(
        [&] { jpeg_crop_scanline(&file_->image(), &first, &width); });
    return first;
  }

  // Reads to the last row of `region`. Decoded rows begin at `first_column`.
  void copy_rows(const ImageRegion& region, std::int64_t first_column,
                 Image& image) {
    jpeg_decompress_struct& object = file_->image();
    image.size = region.size;
    image.channels = static_cast<std::int64_t>(form_.channels);
    const auto width = static_cast<std::size_t>(region.size.width);
    const std::size_t row_bytes = width * form_.channels;
    image.pixels.resize(static_cast<std::size_t>(region.size.height) *
                        row_bytes);
    row_.resize(object.output_width * form_.decoded_channels + 1);
    JSAMPLE* const row = row_.data() + (is_past_cache(row_.data()) ? 1 : 0);
    const bool direct = object.output_width == width &&
                        form_.channels == form_.decoded_channels;
    const std::uint8_t* const inside =
        row + static_cast<std::size_t>(region.left - first_column) *
                  form_.decoded_channels;
    while (object.output_scanline < region.top) file_->read_row(row);
    std::uint8_t* out = image.pixels.data();
    for (std::int64_t i = 0; i < region.size.height; ++i, out += row_bytes) {
      const bool in_place = direct && !is_past_cache(out);
      file_->read_row(in_place ? out : row);
      if (!in_place) copy_pixels(form_, inside, width, out);
    }
    if (object.output_scanline == object.output_height)
      file_->attempt([&] { jpeg_finish_decompress(&object); });
    else
      file_->check_end();
    file_.reset();
  }

  std::string name_{};  // used again
  std::optional<JpegFile> file_{};
  RowForm form_{};
  std::vector<JSAMPLE> row_{};  // used again
};

}  // namespace

std::unique_ptr<ImageDecoder> make_jpeg_decoder() {
  return std::make_unique<JpegDecoder>();
}

}  // namespace lockstep
