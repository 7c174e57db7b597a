# `./dev package`: a Debian package, and an archive that may be unpacked anywhere.
#
# Neither contains LibTorch: programs find the one that they were built with, or
# that of LOCKSTEP_TORCH.
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "Lockstep")
set(CPACK_PACKAGE_CONTACT "The Lockstep maintainers")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# The libraries that programs and plug-ins load, except LibTorch, which is not a
# package.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${LOCKSTEP_TORCH}/lib")
include(CPack)
