# `cmake --install build --prefix DIR`: the program, the library with its one public header, and a package that
# find_package(faultline) finds. It builds against the torch that this library was built with: the ABI is torch's.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/faultline)
set_target_properties(faultline_lib PROPERTIES EXPORT_NAME faultline INSTALL_RPATH "${TORCH_ROOT}/lib")
set_target_properties(faultline_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TORCH_ROOT}/lib")
install(TARGETS faultline_lib LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS faultline_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/faultline DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY data DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_BINARY_DIR}/libfaultline.torch DESTINATION ${CMAKE_INSTALL_LIBDIR})
configure_package_config_file(cmake/faultlineConfig.cmake.in ${CMAKE_BINARY_DIR}/faultlineConfig.cmake
                              INSTALL_DESTINATION ${package_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/faultlineConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/faultlineConfig.cmake ${CMAKE_BINARY_DIR}/faultlineConfigVersion.cmake
        DESTINATION ${package_folder})
