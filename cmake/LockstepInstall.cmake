# Installs every declared layer as one package: find_package(lockstep) gives
# lockstep::lockstep, with all layers except those of the command and its
# companions.
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
list(REMOVE_ITEM layers download options trainer apps cli)

add_library(lockstep_all INTERFACE)
add_library(lockstep::lockstep ALIAS lockstep_all)
set_target_properties(lockstep_all PROPERTIES EXPORT_NAME lockstep)
file(GLOB umbrella CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/include/lockstep/*.h")
target_sources(lockstep_all INTERFACE FILE_SET HEADERS BASE_DIRS
                                      "${PROJECT_SOURCE_DIR}/include"
                                      FILES ${umbrella})
foreach(layer ${layers})
  set_target_properties(lockstep_${layer} PROPERTIES EXPORT_NAME ${layer})
  target_link_libraries(lockstep_all INTERFACE lockstep_${layer})
  list(APPEND targets lockstep_${layer})
  get_target_property(files lockstep_${layer} LOCKSTEP_FILES)
  list(APPEND LOCKSTEP_LIBRARY_FILES ${files})
endforeach()
install(TARGETS lockstep_all ${targets} EXPORT lockstep
        ARCHIVE FILE_SET HEADERS)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
install(EXPORT lockstep NAMESPACE lockstep:: DESTINATION "${package}"
        FILE lockstepTargets.cmake)

# What a linker needs besides, which lockstepConfig.cmake looks for.
list(FILTER LOCKSTEP_LIBRARY_FILES INCLUDE REGEX "^/")
list(REMOVE_DUPLICATES LOCKSTEP_LIBRARY_FILES)
configure_package_config_file(
  cmake/lockstepConfig.cmake.in "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
              "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
              cmake/LockstepTorch.cmake DESTINATION "${package}")

# The documents, with the files that README.md and the guides link to.
set(documents "${CMAKE_INSTALL_DATAROOTDIR}/doc/lockstep")
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE
        DESTINATION "${documents}")
install(FILES benchmarks/README.md DESTINATION "${documents}/benchmarks")
install(DIRECTORY docs examples DESTINATION "${documents}"
        PATTERN "__pycache__" EXCLUDE)
# Debian's name of the license.
install(FILES LICENSE DESTINATION "${documents}" RENAME copyright)
