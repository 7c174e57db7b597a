// Finds the orientation in the EXIF block of an image file.
//
// EXIF is a TIFF file within the image file: a header, which says the byte
// order, then directories of entries. Only entry 0x0112 of the first directory
// is read. A block that is malformed counts as absent, as image viewers do.
//
// Threads: any thread.
// Source:  CIPA DC-008, "Exchangeable image file format for digital still
//          cameras"; TIFF revision 6.0, section 2.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep {

// 1 to 8, of the TIFF file `block`; 1 where it does not say.
int exif_orientation(std::span<const std::byte> block);

// That of the first EXIF block of a JPEG file; 1 where it has none.
int jpeg_orientation(std::span<const std::byte> contents);

}  // namespace lockstep
