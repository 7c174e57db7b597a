# Finds NCCL and declares NCCL::nccl.
#
# LOCKSTEP_NCCL names a folder with include/nccl.h and lib/libnccl.so.2, as in
# PyPI's package nvidia-nccl-cu13 (`./dev build --cuda` installs it); the default
# is the system's NCCL. CUDA's headers are not part of the target.
set(LOCKSTEP_NCCL "" CACHE PATH "Folder of NCCL, with include/ and lib/")
# Not cached, because LOCKSTEP_NCCL may name another folder the next time.
unset(NCCL_INCLUDE_DIR CACHE)
unset(NCCL_LIBRARY CACHE)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${LOCKSTEP_NCCL}/include")
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS "${LOCKSTEP_NCCL}/lib")
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lockstep_nccl_lines
       REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" lockstep_nccl_numbers "${lockstep_nccl_lines}")
  list(JOIN lockstep_nccl_numbers "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE
    "next: run ./dev build --cuda, which installs it, or pass -DLOCKSTEP_NCCL=/path/to/nccl"
)
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl SHARED IMPORTED)
  set_target_properties(
    NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
                          IMPORTED_SONAME libnccl.so.2)
  target_include_directories(NCCL::nccl SYSTEM
                             INTERFACE "${NCCL_INCLUDE_DIR}")
endif()
