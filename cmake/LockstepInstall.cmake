# Installs every declared layer as one package: find_package(lockstep) gives
# lockstep::lockstep, with all layers except those of the command and its
# companions.
include(CMakePackageConfigHelpers)

get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
list(REMOVE_ITEM layers download tools cli)

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
  get_target_property(layer_libraries lockstep_${layer} LOCKSTEP_LIBRARIES)
  list(APPEND libraries ${layer_libraries})
endforeach()
install(TARGETS lockstep_all ${targets} EXPORT lockstep
        ARCHIVE FILE_SET HEADERS)

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
install(EXPORT lockstep NAMESPACE lockstep:: DESTINATION "${package}"
        FILE lockstepTargets.cmake)

# The packages that an outside project must find too, from the names of the
# imported targets that the layers link: fmt::fmt belongs to package fmt.
list(FILTER libraries INCLUDE REGEX "::")
list(TRANSFORM libraries REPLACE "::.*" "")
list(REMOVE_DUPLICATES libraries)
list(REMOVE_ITEM libraries lockstep)
set(LOCKSTEP_PACKAGES "${libraries}")
configure_package_config_file(
  cmake/lockstepConfig.cmake.in "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/lockstepConfig.cmake"
              "${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake"
              cmake/LockstepTorch.cmake DESTINATION "${package}")
